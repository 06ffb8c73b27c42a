# frozen_string_literal: true

module Larder
  # The base class of the errors that calls raise. Invalid arguments raise ArgumentError instead.
  class Error < RuntimeError
    def initialize(message = nil, ambiguous = false)
      super(message)
      @ambiguous = ambiguous
    end

    # Returns whether the requested change may have happened. If the result is false, the change has not happened and
    # will not happen.
    def ambiguous?
      @ambiguous
    end
  end

  # dalli's name for Larder::Error.
  DalliError = Error

  # The connection failed, no connection of the pool was free in time, or the server sent an unexpected reply or no
  # reply in time.
  class NetworkError < Error; end

  # The server is unreachable, its name cannot be resolved, or the server is unavailable after several failures.
  class RingError < Error; end

  # A value cannot be serialized.
  class MarshalError < Error; end

  # A value cannot be deserialized or decompressed.
  class UnmarshalError < Error; end

  # A value is longer than value_max_bytes.
  class ValueOverMaxSize < Error; end
end
