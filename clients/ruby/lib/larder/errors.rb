# frozen_string_literal: true

module Larder
  # The base class of errors of calls. Errors of arguments are ArgumentErrors.
  class Error < RuntimeError
    def initialize(message = nil, ambiguous = false)
      super(message)
      @ambiguous = ambiguous
    end

    # Whether the requested change may have happened. If false, it has not and will not.
    def ambiguous?
      @ambiguous
    end
  end

  # dalli's name of Larder::Error.
  DalliError = Error

  # The connection failed, no connection of the pool was free in time, or the server did not reply in time or sent an
  # unexpected reply.
  class NetworkError < Error; end

  # The server is unreachable, or unavailable after several failures, or its name cannot be resolved.
  class RingError < Error; end

  # A value cannot be serialized.
  class MarshalError < Error; end

  # A value cannot be deserialized or decompressed.
  class UnmarshalError < Error; end

  # A value is longer than value_max_bytes.
  class ValueOverMaxSize < Error; end
end
