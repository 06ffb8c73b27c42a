//! Generates Rust code and a descriptor set from `proto/larder/v1/cache.proto`, without `protoc`.
//! The argument is the folder for both generated files. `scripts/grpc-code` runs this program.

use protox::prost::Message;
use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let out =
        PathBuf::from(std::env::args_os().nth(1).ok_or("usage: larder-gateway-codegen FOLDER")?);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let files = protox::compile(["larder/v1/cache.proto"], [root])?;
    // gRPC reflection serves this descriptor set.
    std::fs::write(out.join("larder.v1.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_client(false)
        .codec_path("crate::grpc::codec::BoundedCodec")
        .out_dir(out)
        .compile_fds(files)?;
    Ok(())
}
