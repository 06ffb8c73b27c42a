//! Prints `larder.h`.

#![expect(clippy::print_stdout, reason = "the header goes to the standard output")]

fn main() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let config = cbindgen::Config::from_root_or_default(folder);
    let bindings = cbindgen::generate_with_config(folder, config).expect("the source is readable");
    let mut header = Vec::new();
    bindings.write(&mut header);
    print!("{}", String::from_utf8(header).expect("the source is UTF-8"));
}
