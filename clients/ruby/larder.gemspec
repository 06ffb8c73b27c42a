# frozen_string_literal: true

require_relative "lib/larder/version"

# The build of the library uses the crates of this repository, so the gem works only in a checkout of the repository.
Gem::Specification.new do |gem|
  gem.name = "larder"
  gem.version = Larder::VERSION
  gem.summary = "A client of memcached and Larder for threads, with dalli's methods and options"
  gem.authors = ["Larder's authors"]
  gem.homepage = "https://github.com/larder-cache/larder"
  gem.licenses = ["MIT", "Apache-2.0"]
  gem.required_ruby_version = ">= 3.1"
  gem.files = Dir["lib/**/*.rb", "src/*.rs", "Cargo.*", "extconf.rb", base: __dir__]
  gem.extensions = ["extconf.rb"]
end
