# frozen_string_literal: true

require "helper"
require "active_support"
require "active_support/cache"
require "active_support/core_ext/numeric/time"
require "open3"
require "tmpdir"

# Tests the examples in docs/ruby.md. Only the server's address is replaced.
class DocsTest < Minitest::Test
  DOCS = File.read("#{ROOT}/docs/ruby.md")
  QUICK_START, RAILS = DOCS.scan(/^```ruby\n(.*?)^```$/m).flatten

  def setup
    @server = Server.shared(:larderd)
  end

  def with_address(example)
    assert_includes example, "cache:11211"
    example.sub("cache:11211", @server.address)
  end

  def test_the_library_is_built_from_anywhere
    Dir.mktmpdir do |elsewhere|
      # The library is up to date, so cargo builds nothing.
      output, status = Open3.capture2e(RbConfig.ruby, "#{ROOT}/clients/ruby/extconf.rb", chdir: elsewhere)
      assert_predicate status, :success?, output
      assert_empty Dir.children(elsewhere)
    end
  end

  def test_the_quick_start
    lib = File.expand_path("../lib", __dir__)
    output, status = Open3.capture2e(RbConfig.ruby, "-w", "-I", lib, "-e", with_address(QUICK_START))
    assert_equal "Ann\n55\n[\"user:1\", \"sum\"]\n", output
    assert_predicate status, :success?
  end

  def test_rails
    config = Struct.new(:cache_store).new
    eval(with_address(RAILS))
    store = ActiveSupport::Cache.lookup_store(config.cache_store)
    store.write("key", 1)
    assert_equal 1, store.read("key")
    assert_equal 1, Larder::Client.new(@server.address, namespace: "app").get("key").value
  end

  def test_the_table_lists_all_options
    table = DOCS[/## Options.*?\n## /m].scan(/^\| (`.*?) \|/).flatten.join(" ").scan(/\w+/)
    assert_equal Larder::Client::OPTIONS.keys.map(&:to_s).sort, table.sort
  end
end
