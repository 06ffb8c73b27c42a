//! Binary packets as lines: `set flags=7 exptime=0 key=foo value=bar`.
//!
//! A line consists of the name or number of an opcode, followed by fields. `flags`, `exptime`,
//! `delta`, `initial` and `extras=<bytes>` append bytes to the extras, in their order on the line.
//! `number` sets a value of eight bytes, and `value` takes the rest of the line. The value of `cas`
//! is a number or the name of a CAS. `key`, `opaque` and `status` set these fields of the packet.
//! `magic`, `keylen`, `extlen` and `bodylen` replace the correct values in the header, to create
//! malformed packets.

use crate::escape::{bytes, cas};
use crate::piece::{Form, Piece};

const OPCODES: [(&str, u8); 35] = [
    ("get", 0x00),
    ("set", 0x01),
    ("add", 0x02),
    ("replace", 0x03),
    ("delete", 0x04),
    ("incr", 0x05),
    ("decr", 0x06),
    ("quit", 0x07),
    ("flush", 0x08),
    ("getq", 0x09),
    ("noop", 0x0a),
    ("version", 0x0b),
    ("getk", 0x0c),
    ("getkq", 0x0d),
    ("append", 0x0e),
    ("prepend", 0x0f),
    ("stat", 0x10),
    ("setq", 0x11),
    ("addq", 0x12),
    ("replaceq", 0x13),
    ("deleteq", 0x14),
    ("incrq", 0x15),
    ("decrq", 0x16),
    ("quitq", 0x17),
    ("flushq", 0x18),
    ("appendq", 0x19),
    ("prependq", 0x1a),
    ("verbosity", 0x1b),
    ("touch", 0x1c),
    ("gat", 0x1d),
    ("gatq", 0x1e),
    ("saslmechs", 0x20),
    ("saslauth", 0x21),
    ("gatk", 0x23),
    ("gatkq", 0x24),
];

pub(crate) fn request(line: &str) -> Result<Vec<Piece>, String> {
    Packet::read(line, 0x80).map(Packet::pieces)
}

pub(crate) fn answer(line: &str) -> Result<Vec<Piece>, String> {
    Packet::read(line, 0x81).map(Packet::pieces)
}

struct Packet {
    magic: u8,
    opcode: u8,
    status: u16,
    extras: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    opaque: u32,
    cas: Piece,
    key_len: Option<u16>,
    extras_len: Option<u8>,
    body_len: Option<u32>,
}

impl Packet {
    fn read(line: &str, magic: u8) -> Result<Self, String> {
        let (fields, value) = line.split_once(" value=").unwrap_or((line, ""));
        let mut fields = fields.split(' ');
        let mut packet = Self {
            magic,
            opcode: opcode(fields.next().unwrap_or_default())?,
            status: 0,
            extras: vec![],
            key: vec![],
            value: bytes(value)?,
            opaque: 0,
            cas: Piece::Bytes(vec![0; 8]),
            key_len: None,
            extras_len: None,
            body_len: None,
        };
        for field in fields {
            let (name, text) =
                field.split_once('=').ok_or_else(|| format!("expected name=value: {field}"))?;
            packet.set(name, text)?;
        }
        Ok(packet)
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        match name {
            "magic" => self.magic = number(text)?,
            "status" => self.status = number(text)?,
            "opaque" => self.opaque = number(text)?,
            "key" => self.key = bytes(text)?,
            "keylen" => self.key_len = Some(number(text)?),
            "extlen" => self.extras_len = Some(number(text)?),
            "bodylen" => self.body_len = Some(number(text)?),
            "flags" | "exptime" => self.extras.extend(number::<u32>(text)?.to_be_bytes()),
            "delta" | "initial" => self.extras.extend(number::<u64>(text)?.to_be_bytes()),
            "extras" => self.extras.extend(bytes(text)?),
            "number" => self.value = number::<u64>(text)?.to_be_bytes().to_vec(),
            "cas" => {
                self.cas = match text.parse::<u64>() {
                    Ok(cas) => Piece::Bytes(cas.to_be_bytes().to_vec()),
                    Err(_) => cas(text, Form::Binary)?,
                }
            }
            _ => return Err(format!("unknown field: {name}")),
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "transcripts' packets are small")]
    fn pieces(self) -> Vec<Piece> {
        let key_len = self.key_len.unwrap_or(self.key.len() as u16);
        let body_len = self.extras.len() + self.key.len() + self.value.len();
        let mut head = vec![self.magic, self.opcode];
        head.extend(key_len.to_be_bytes());
        head.extend([self.extras_len.unwrap_or(self.extras.len() as u8), 0]);
        head.extend(self.status.to_be_bytes());
        head.extend(self.body_len.unwrap_or(body_len as u32).to_be_bytes());
        head.extend(self.opaque.to_be_bytes());
        let body = [self.extras, self.key, self.value].concat();
        vec![Piece::Bytes(head), self.cas, Piece::Bytes(body)]
    }
}

fn opcode(name: &str) -> Result<u8, String> {
    match OPCODES.iter().find(|(known, _)| *known == name) {
        Some((_, opcode)) => Ok(*opcode),
        None => number(name).map_err(|_| format!("unknown opcode: {name}")),
    }
}

/// Parses a decimal number, or a hexadecimal number with the prefix `0x`.
fn number<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = parsed.ok().and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| format!("not a number, or too large for its field: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_by_the_byte() {
        let pieces = request("set opaque=0x0a0b0c0d cas=5 flags=7 exptime=0 key=foo value=b r");
        let bytes: Vec<u8> = pieces
            .unwrap()
            .into_iter()
            .flat_map(|piece| match piece {
                Piece::Bytes(bytes) => bytes,
                _ => panic!("{piece:?}"),
            })
            .collect();
        let head = b"\x80\x01\0\x03\x08\0\0\0\0\0\0\x0e\x0a\x0b\x0c\x0d\0\0\0\0\0\0\0\x05";
        assert_eq!(bytes, [&head[..], b"\0\0\0\x07\0\0\0\0foob r"].concat());
    }
}
