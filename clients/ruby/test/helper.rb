# frozen_string_literal: true

# Servers for tests, on free ports of 127.0.0.1. LARDERD is the path of larderd [default: in target/].

require "minitest/autorun"
require "larder"
require "socket"
require "timeout"

ROOT = File.expand_path("../../..", __dir__)

# The time limit of a wait in seconds. It is long, so that no test fails because the machine is busy.
PATIENCE = 60

def wait_until(event)
  Timeout.timeout(PATIENCE, nil, "timeout: #{event}") { sleep 0.01 until yield }
end

# A running memcached or larderd.
class Server
  LARDERD = ENV["LARDERD"] || %w[release debug].map { |kind| "#{ROOT}/target/#{kind}/larderd" }.find { |path| File.exist?(path) }
  MEMCACHED = "/usr/bin/memcached"
  BINARIES = { larderd: LARDERD, memcached: MEMCACHED }.freeze

  attr_reader :port

  def initialize(kind = :larderd, *options)
    @options = options
    @binary = BINARIES.fetch(kind) or abort "there is no larderd: cargo build --release, or set LARDERD"
    @port = TCPServer.open("127.0.0.1", 0) { |socket| socket.addr[1] }
    start
  end

  def start
    user = Process.uid.zero? ? %w[-u nobody] : []
    @pid = spawn(@binary, "-l", "127.0.0.1", "-p", port.to_s, *user, *@options, %i[out err] => File::NULL)
    wait_until("listening") do
      raise "the server has ended: #{@binary}" if Process.wait(@pid, Process::WNOHANG)

      TCPSocket.new("127.0.0.1", port).close || true
    rescue SystemCallError
      false
    end
  end

  def kill
    Process.kill(:KILL, @pid)
    Process.wait(@pid)
    @pid = nil
  end

  def stop
    kill if @pid
  end

  def address
    "127.0.0.1:#{port}"
  end

  # Returns the server of this kind that tests share. Tests must not stop it.
  def self.shared(kind)
    @shared ||= Hash.new do |servers, name|
      servers[name] = new(name).tap { |server| Minitest.after_run { server.stop } }
    end
    @shared[kind]
  end
end

# A scripted server. It calls the block for each received line, with the line and the socket.
class FakeServer
  attr_reader :accepted

  def initialize(&answer)
    @listener = TCPServer.new("127.0.0.1", 0)
    @accepted = 0
    @thread = Thread.new do
      loop do
        socket = @listener.accept
        @accepted += 1
        Thread.new { serve(socket, answer) }
      end
    end
  end

  def address
    "127.0.0.1:#{@listener.addr[1]}"
  end

  def stop
    @thread.kill.join
    @listener.close
  end

  private

  def serve(socket, answer)
    while (line = socket.gets)
      answer.call(line.chomp, socket)
    end
  rescue SystemCallError, IOError
    # The client has closed the connection.
  end
end
