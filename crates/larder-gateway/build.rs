//! Generates the types and the service of `proto/larder/v1/cache.proto` without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "grpc")]
    generate()?;
    Ok(())
}

#[cfg(feature = "grpc")]
fn generate() -> Result<(), Box<dyn std::error::Error>> {
    use protox::prost::Message;

    let (file, root) = ("proto/larder/v1/cache.proto", "proto");
    println!("cargo::rerun-if-changed={file}");
    let files = protox::compile([file], [root])?;
    // gRPC reflection serves this descriptor set.
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("larder.v1.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_client(false)
        .codec_path("crate::grpc::codec::BoundedCodec")
        .compile_fds(files)?;
    Ok(())
}
