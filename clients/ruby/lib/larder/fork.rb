# frozen_string_literal: true

module Larder
  # Handling of forks: a forked child drops the sockets of its parent and opens its own.
  module Fork
    # The clients of this process. The map has each client as key and as value, because WeakMap drops a pair when the
    # garbage collector frees its value. With another value, the map could yield clients that are about to be freed.
    CLIENTS = ObjectSpace::WeakMap.new

    # Registers a new client.
    def self.watch(client)
      CLIENTS[client] = client
    end

    def self.forget_connections
      CLIENTS.each_value(&:after_fork)
    end

    # All forks call Process._fork, except Process.daemon.
    module Hook
      def _fork
        pid = super
        Fork.forget_connections if pid.zero?
        pid
      end

      def daemon(...)
        super.tap { Fork.forget_connections }
      end
    end

    Process.singleton_class.prepend(Hook)
  end
  private_constant :Fork
end
