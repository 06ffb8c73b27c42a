"""An HTTP/2 client that can violate the protocols."""

import socket
import urllib.parse

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings

from server import TIMEOUT_SECS

# If a stream violates gRPC's protocol, the server may reply with the status INTERNAL and a message that starts with one
# of these texts.
NO_GRPC = ("protocol error: ", "Unexpected EOF", "Missing request message")
NAMES = {str(code.value[0]): code.name for code in grpc.StatusCode}


class Peer:
    """An HTTP/2 connection that sends valid or invalid frames."""

    def __init__(self, address, window=None, stream_window=None):
        host, port = address.split(":")
        self.sock = socket.create_connection((host, int(port)), TIMEOUT_SECS)
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        if window:
            self.h2.increment_flow_control_window(window)
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        if stream_window is not None:
            self.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: stream_window})
        self.statuses = {}
        self.http_statuses = {}
        self.ended = set()
        self.flush()

    def flush(self):
        self.sock.sendall(self.h2.data_to_send())

    def begin(self, method, *more):
        """Starts a gRPC request, and returns its stream."""
        stream = self.h2.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "http"), (":path", f"/larder.v1.Cache/{method}"),
                (":authority", "localhost"), ("content-type", "application/grpc"), ("te", "trailers"), *more]  # fmt: skip
        self.h2.send_headers(stream, head)
        return stream

    def get(self, path):
        """Sends an HTTP request."""
        stream = self.h2.get_next_available_stream_id()
        head = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        self.h2.send_headers(stream, head, end_stream=True)
        self.flush()

    def send(self, stream, data, end=True):
        """Sends as much of the data as the windows allow."""
        room = self.h2.local_flow_control_window(stream)
        for at in range(0, min(len(data), room), 16_000):
            self.h2.send_data(stream, data[at : min(at + 16_000, room)])
        if end and len(data) <= room:
            self.h2.end_stream(stream)
        self.flush()

    def receive(self):
        """Receives once from the socket. Returns false at the end of the connection."""
        data = self.sock.recv(65536)
        for event in self.h2.receive_data(data) if data else []:
            match event:
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    found = dict(event.headers)
                    if b":status" in found:
                        self.http_statuses[event.stream_id] = int(found[b":status"])
                    if b"grpc-status" in found:
                        name = NAMES[found[b"grpc-status"].decode()]
                        text = urllib.parse.unquote(found.get(b"grpc-message", b"").decode())
                        assert name != "INTERNAL" or text.startswith(NO_GRPC), text
                        self.statuses[event.stream_id] = name
                case h2.events.StreamEnded():
                    self.ended.add(event.stream_id)
                case h2.events.StreamReset():
                    self.statuses.setdefault(event.stream_id, f"reset {event.error_code}")
                case h2.events.DataReceived():
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if data:
            self.flush()
        return bool(data)

    def close(self):
        self.sock.close()
