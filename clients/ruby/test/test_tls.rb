# frozen_string_literal: true

require "helper"
require "active_support"
require "active_support/cache"
require "dalli"
require "fileutils"
require "openssl"
require "tmpdir"

# Tests TLS with larderd and memcached.
class TlsTest < Minitest::Test
  # A folder with PEM files: a CA, a server and a client with certificates from this CA, and another CA.
  FOLDER = Dir.mktmpdir.tap { |folder| Minitest.after_run { FileUtils.rm_rf(folder) } }

  def self.openssl(*words)
    system("openssl", *words, chdir: FOLDER, exception: true, %i[out err] => File::NULL)
  end

  def self.authority(name)
    openssl("req", "-x509", *KEY, "-keyout", "#{name}.key", "-out", "#{name}.pem", "-subj", "/CN=#{name}", "-days", "2")
  end

  def self.issue(name)
    openssl("req", *KEY, "-keyout", "#{name}.key", "-out", "#{name}.csr", "-subj", "/CN=#{name}")
    File.write("#{FOLDER}/extensions", "basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:cache.test\n")
    openssl("x509", "-req", "-in", "#{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out",
            "#{name}.pem", "-days", "2", "-extfile", "extensions")
  end

  KEY = %w[-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes].freeze
  %w[ca other].each { |name| authority(name) }
  %w[server client].each { |name| issue(name) }
  File.write("#{FOLDER}/both.pem", File.read("#{FOLDER}/client.pem") + File.read("#{FOLDER}/client.key"))
  # The servers run as another user, which must be able to read the files.
  FileUtils.chmod_R("a+rX", FOLDER)

  CA = { ca_file: "#{FOLDER}/ca.pem" }.freeze

  # A server with TLS that all tests share. With `mutual`, the server requires client certificates.
  def self.server(kind, mutual: false)
    @servers ||= Hash.new do |servers, (name, requires)|
      files = "ssl_chain_cert=#{FOLDER}/server.pem,ssl_key=#{FOLDER}/server.key"
      files += ",ssl_ca_cert=#{FOLDER}/ca.pem,ssl_verify_mode=2" if requires
      server = Server.new(name, "-Z", "-o", files).tap { |started| Minitest.after_run { started.stop } }
      servers[[name, requires]] = server
    end
    @servers[[kind, mutual]]
  end

  def each_server(**options)
    %i[larderd memcached].each { |kind| yield self.class.server(kind, **options) }
  end

  def client(server, ssl, **options)
    timeouts = { socket_timeout: PATIENCE, connect_timeout: PATIENCE }
    Larder::Client.new(server.address, ssl: ssl, **timeouts, **options)
  end

  def error_of(server, ssl)
    assert_raises(Larder::NetworkError, Larder::RingError) { client(server, ssl).get("key") }.message
  end

  def test_values
    each_server do |server|
      [{}, { pool: false }].each do |options|
        [CA, CA.transform_keys(&:to_s), { **CA, server_name: "cache.test" }].each do |ssl|
          cache = client(server, ssl, **options)
          [0, 1, 20_000, 900_000].each do |length|
            value = Random.bytes(length)
            assert cache.set("key", value, 60, raw: true)
            assert_equal value, cache.get("key")
          end
          assert_nil cache.set_multi((0...300).to_h { |n| ["key#{n}", n] })
          assert_equal 300, cache.get_multi((0...400).map { |n| "key#{n}" }).size
          assert_equal [server.address], cache.version.compact.keys
        end
      end
    end
  end

  def test_client_certificates
    each_server(mutual: true) do |server|
      [{ cert_file: "#{FOLDER}/client.pem", key_file: "#{FOLDER}/client.key" }, { cert_file: "#{FOLDER}/both.pem" }].each do |files|
        assert client(server, { **CA, **files }).set("key", 1)
      end
      # The server refuses the client after the handshake, and the client can lose the reason when the server closes the
      # connection.
      wait_until("the reason") { error_of(server, CA).include?("CertificateRequired") }
    end
  end

  def test_refused_certificates
    each_server do |server|
      [{ ca_file: "#{FOLDER}/other.pem" }, true].each do |ssl|
        assert_match(/the server's certificate is not signed by a trusted CA/, error_of(server, ssl))
      end
      assert_match(/certificate is not for other.test/, error_of(server, { **CA, server_name: "other.test" }))
    end
  end

  def test_only_one_side_uses_tls
    # memcached closes the connection without a reply.
    assert error_of(self.class.server(:memcached), false)
    wait_until("the reason") { error_of(self.class.server(:larderd), nil).include?("the server requires TLS") }
    plain = TCPServer.new("127.0.0.1", 0)
    thread = Thread.new { loop { plain.accept.write("ERROR\r\n") } }
    address = "127.0.0.1:#{plain.addr[1]}"
    cache = Larder::Client.new(address, socket_timeout: PATIENCE, connect_timeout: PATIENCE, ssl: CA)
    error = assert_raises(Larder::RingError) { cache.get("key") }
    assert_match(/the server does not speak TLS/, error.message)
  ensure
    thread&.kill&.join
    plain&.close
  end

  def test_several_servers
    servers = %i[larderd memcached].map { |kind| self.class.server(kind).address }
    cache = Larder::Client.new(servers, socket_timeout: PATIENCE, ssl: CA)
    100.times { |n| assert cache.set("key#{n}", n) }
    assert_equal (0...100).to_a, cache.get_multi((0...100).map { |n| "key#{n}" }).values.sort
    assert_equal servers, cache.version.compact.keys
  end

  def test_threads_and_forks
    [{ pool: 4 }, { pool: false }].each do |options|
      cache = client(self.class.server(:larderd), CA, **options)
      threads = Array.new(16) do |name|
        Thread.new do
          Array.new(50) { |n| cache.set("#{name}-#{n}", [name, n] * n) && cache.get("#{name}-#{n}") == [name, n] * n }
        end
      end
      assert_equal [true], threads.flat_map(&:value).uniq
      connections = cache.stats.values[0]["total_connections"].to_i
      Process.wait(fork { exit!(0) })
      assert_equal [2, 1], cache.get("2-1")
      assert_equal connections, cache.stats.values[0]["total_connections"].to_i, "the parent keeps its connections"
      pid = fork { exit!(cache.get("1-1") == [1, 1] ? 0 : 1) }
      assert_predicate Process.wait2(pid)[1], :success?
      assert_equal [2, 1], cache.get("2-1")
    end
  end

  def test_a_waiting_call_can_be_killed
    silent = FakeServer.new { nil }
    cache = client(silent, CA, socket_timeout: 600, connect_timeout: 600)
    thread = Thread.new { cache.get("key") }
    wait_until("the handshake") { silent.accepted == 1 && thread.status == "sleep" }
    thread.kill
    assert thread.join(PATIENCE)
  ensure
    silent.stop
  end

  def test_rails
    server = self.class.server(:larderd)
    store = ActiveSupport::Cache.lookup_store(:larder_store, server.address, { socket_timeout: PATIENCE, ssl: CA })
    assert_equal true, store.write("key", 1)
    assert_equal 1, store.read("key")
    refute store.options.key?(:ssl)
    unencrypted = ActiveSupport::Cache.lookup_store(:larder_store, server.address, { socket_timeout: PATIENCE })
    assert_nil unencrypted.read("key")
  end

  # dalli sends the server's IP address as the server name of the handshake.
  def test_dalli
    context = OpenSSL::SSL::SSLContext.new
    context.set_params(ca_file: "#{FOLDER}/ca.pem")
    each_server do |server|
      cache = Dalli::Client.new(server.address, ssl_context: context, socket_timeout: PATIENCE)
      assert cache.set("key", "long" * 5000, nil, raw: true, compress: false)
      assert_equal "long" * 5000, cache.get("key")
    end
  end

  def test_the_example_of_the_documentation
    example = File.read("#{ROOT}/docs/ruby.md")[/## TLS.*?^```ruby\n(.*?)^```$/m, 1]
    replacements = { "cache.example.com:11211" => self.class.server(:larderd).address, "/etc/cache/ca.pem" => CA[:ca_file] }
    cache = eval(example.gsub(Regexp.union(replacements.keys), replacements))
    assert_equal true, cache.set("key", 1)
  end

  def test_settings_that_cannot_be_used
    File.write("#{FOLDER}/empty.pem", "")
    {
      { ca_file: "#{FOLDER}/none.pem" } => /ssl: .*none.pem: No such file/,
      { ca_file: "#{FOLDER}/empty.pem" } => /empty.pem: no certificate/,
      { cert_file: "#{FOLDER}/client.pem" } => /client.pem: no private key/,
      { cert_file: "#{FOLDER}/client.pem", key_file: "#{FOLDER}/server.key" } => /server.key: /,
      { key_file: "#{FOLDER}/client.key" } => /needs a cert_file/,
      { server_name: "no name" } => /not a valid certificate name/,
      { cert: "client.pem" } => /ssl must be true or a hash with ca_file, cert_file, key_file, server_name/,
      OpenSSL::SSL::SSLContext.new => /ssl must be true or a hash/
    }.each do |ssl, message|
      error = assert_raises(ArgumentError) { Larder::Client.new("cache", ssl: ssl) }
      assert_match message, error.message
    end
    [{ ssl_context: nil }, { "ssl_context" => OpenSSL::SSL::SSLContext.new }].each do |options|
      error = assert_raises(ArgumentError) { Larder::Client.new("cache", options) }
      assert_match(/ssl_context is not supported: use ssl: true/, error.message)
    end
  end
end
