# frozen_string_literal: true

module Larder
  # Any error of a call. Those of the arguments are ArgumentErrors.
  class Error < RuntimeError
    def initialize(message = nil, ambiguous = false)
      super(message)
      @ambiguous = ambiguous
    end

    # Whether the change that was asked for may have happened. Otherwise it has not, and will not.
    def ambiguous?
      @ambiguous
    end
  end

  # What Larder::Error is called in dalli.
  DalliError = Error

  # The connection failed, or the server did not answer in time, or with nonsense.
  class NetworkError < Error; end

  # The server can't be reached, or is left alone for a moment after many faults.
  class RingError < Error; end

  # A value can't be serialized.
  class MarshalError < Error; end

  # A value can't be deserialized or decompressed.
  class UnmarshalError < Error; end

  # A value is longer than value_max_bytes.
  class ValueOverMaxSize < Error; end
end
