//! Reads a Lua script from standard input and prints its hashes for the tables in
//! `src/resp/script/known.rs`: `cargo run -p larder-protocol --example script_hash < SCRIPT`
#![expect(clippy::print_stdout, reason = "it is a program")]

use larder_protocol::resp::{hash_of, hex, normal_form};
use std::io::Read;

fn main() -> std::io::Result<()> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    println!("text         {}", hex(&hash_of(&text)));
    match normal_form(&text) {
        Some(form) => {
            println!("normal form  {}\n{}", hex(&hash_of(&form)), String::from_utf8_lossy(&form));
        }
        None => println!("the script has no normal form"),
    }
    Ok(())
}
