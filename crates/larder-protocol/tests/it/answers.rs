//! Property tests of the reply readers. The replies do not depend on how the stream is split. If a
//! text reply is incomplete, the reader never waits for bytes after the end of this reply.

use larder_protocol::answer::{Answer, read_binary, read_resp, read_text};
use larder_protocol::response::Read;
use proptest::prelude::*;

type Reader = for<'b> fn(&'b [u8]) -> Read<Answer<'b>>;

/// Reads a stream that arrives in pieces, and formats its replies. `lens` contains the lengths of
/// the pieces, and repeats until the end of the stream. Reads again only when the requested bytes
/// have arrived.
fn answers(stream: &[u8], lens: &[usize], read: Reader) -> Vec<String> {
    let (mut formatted, mut start, mut end, mut wanted) = (Vec::new(), 0, 0, 1);
    for len in lens.iter().cycle() {
        end = (end + len).min(stream.len());
        while end - start >= wanted {
            match read(&stream[start..end]) {
                Read::Whole(answer, len) => {
                    assert!((1..=end - start).contains(&len), "{answer:?}: {len}");
                    formatted.push(format!("{answer:?}"));
                    (start, wanted) = (start + len, 1);
                }
                Read::Incomplete { wanted: more } => {
                    assert!(more > end - start, "{more} bytes wanted, {} here", end - start);
                    wanted = more;
                }
                Read::Malformed => {
                    formatted.push("malformed".to_owned());
                    return formatted;
                }
            }
        }
        if end == stream.len() {
            return formatted;
        }
    }
    formatted
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..20),
        1 => Just(b"\r\nEND\r\nVALUE a 0 9\r\n".to_vec()),
    ]
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = "(STORED|NOT_FOUND|END|MN|EN|HD c9 O7|NF|EX kkey|12|VERSION 1|STAT a b|ERROR|\
                CLIENT_ERROR no|SERVER_ERROR no|ME k a=b)\r?\n";
    prop_oneof![
        line.prop_map(String::into_bytes),
        (value(), "( 9)?").prop_map(|(value, cas)| {
            let head = format!("VALUE key 7 {}{cas}\r\n", value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        }),
        (value(), "( [WXZb]| f7| c9| t-1| kkey| Oab){0,4}").prop_map(|(value, flags)| {
            let head = format!("VA {}{flags}\r\n", value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        }),
    ]
}

fn binary() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![Just(0), Just(1), Just(5), 0..0x25_u8];
    (opcode, 0..3_u8, any::<[u8; 4]>(), "[a-z]{0,5}", value(), any::<u64>()).prop_map(
        |(opcode, status, extras, key, value, cas)| {
            let value = if matches!(opcode, 5 | 6) { vec![0; 8] } else { value };
            let lens = [key.len(), 4 + key.len() + value.len()];
            let [key_len, body_len] = lens.map(|len| u8::try_from(len).unwrap());
            let head = [0x81, opcode, 0, key_len, 4, 0, 0, status, 0, 0, 0, body_len];
            let cas = cas.to_be_bytes();
            [&head[..], b"abcd", &cas, &extras, key.as_bytes(), &value].concat()
        },
    )
}

fn resp() -> impl Strategy<Value = Vec<u8>> {
    let line = "([+]OK|[+]PONG|-ERR no|-OOM no|:12|[$]-1|[*]2|:-1)\r\n";
    prop_oneof![
        line.prop_map(String::into_bytes),
        value().prop_map(|value| {
            let head = format!("${}\r\n", value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        }),
    ]
}

fn stream(of: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(of, 1..8).prop_map(|answers| answers.concat())
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..40_usize, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_split_of_text_reads_the_same(stream in stream(text()), pieces in pieces()) {
        let whole = answers(&stream, &[stream.len()], read_text);
        prop_assert_eq!(answers(&stream, &pieces, read_text), whole);
    }

    #[test]
    fn any_split_of_binary_reads_the_same(stream in stream(binary()), pieces in pieces()) {
        let whole = answers(&stream, &[stream.len()], read_binary);
        prop_assert_eq!(answers(&stream, &pieces, read_binary), whole);
    }

    #[test]
    fn any_split_of_resp_reads_the_same(stream in stream(resp()), pieces in pieces()) {
        let whole = answers(&stream, &[stream.len()], read_resp);
        prop_assert_eq!(answers(&stream, &pieces, read_resp), whole);
    }

    #[test]
    fn any_split_of_arbitrary_bytes_reads_the_same(
        stream in prop::collection::vec(any::<u8>(), 1..100),
        pieces in pieces(),
    ) {
        for read in [read_text as Reader, read_binary, read_resp] {
            let whole = answers(&stream, &[stream.len()], read);
            prop_assert_eq!(answers(&stream, &pieces, read), whole);
        }
    }

    /// Every prefix of a reply is incomplete. The reader never waits for bytes after the end of the
    /// reply.
    #[test]
    fn a_prefix_of_an_answer_is_incomplete(text in text()) {
        for len in 0..text.len() {
            match read_text(&text[..len]) {
                Read::Incomplete { wanted } => {
                    prop_assert!((len + 1..=text.len()).contains(&wanted), "{}", wanted);
                }
                other => prop_assert!(false, "{len} bytes: {other:?}"),
            }
        }
        let all = text.len();
        let is_whole = matches!(read_text(&text), Read::Whole(_, len) if len == all);
        prop_assert!(is_whole, "{}", text.escape_ascii());
    }
}
