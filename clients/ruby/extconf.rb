# frozen_string_literal: true

# Builds the library with cargo and copies it to lib/: `ruby extconf.rb`. Needs Rust, the headers of Ruby and libclang
# (Debian: ruby-dev libclang-dev). The Makefile, which RubyGems requires, does nothing.
require "fileutils"
require "mkmf"
require "rbconfig"

Dir.chdir(__dir__) do
  target = ENV.fetch("CARGO_TARGET_DIR", "target")
  system("cargo", "build", "--release", "--locked", exception: true)
  built = Dir[File.join(target, "release", "liblarder_ruby.{so,dylib}")].first or abort "cargo has built no library"
  # Renames a copy instead of overwriting the old library, because a running process may have mapped the old library.
  library = "lib/larder/native.#{RbConfig::CONFIG['DLEXT']}"
  FileUtils.cp(built, "#{library}.new")
  File.rename("#{library}.new", library)
  File.write("Makefile", dummy_makefile(__dir__).join)
end
# Without this setting, mkmf would look for the Makefile in the caller's working directory, and report a failure.
$makefile_created = true
