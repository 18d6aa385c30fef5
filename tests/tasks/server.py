"""A server of files in this process, as TFF's files are served: parts of a file, ETag and MD5."""

import base64
import contextlib
import functools
import hashlib
import http.server
import threading


class Server:
    """Serves `files`, name → content, at `url`.

    Attributes:
      files: May be changed at any time.
      asked: Name and `Range` of every request.
      cut_after: If set, the connection ends after so many bytes of a file.
      says_md5: Whether answers tell the content's MD5, as Google's do.
      md5_of: If set, the content whose MD5 they tell instead.
    """

    def __init__(self):
        self.files, self.asked = {}, []
        self.cut_after, self.says_md5, self.md5_of = None, True, None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self):
        serve = functools.partial(self._server.serve_forever, poll_interval=0.01)
        self._thread = threading.Thread(target=serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self):
        answer = self._answer

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                answer(self)

            def log_message(self, *_):
                pass

        return Handler

    def _answer(self, handler):
        name, asked = handler.path.lstrip("/"), handler.headers.get("Range")
        self.asked.append((name, asked))
        if name not in self.files:
            handler.send_error(404)
            return
        content = self.files[name]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        start = 0
        if asked and handler.headers.get("If-Range") == etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            handler.send_response(200)
        handler.send_header("ETag", etag)
        handler.send_header("Content-Length", str(len(content) - start))
        if self.says_md5:
            md5 = hashlib.md5(self.md5_of or content).digest()
            handler.send_header("x-goog-hash", "crc32c=n03x6A==")
            handler.send_header("x-goog-hash", f"md5={base64.b64encode(md5).decode()}")
        handler.end_headers()
        end = len(content) if self.cut_after is None else start + self.cut_after
        with contextlib.suppress(OSError):
            handler.wfile.write(content[start:end])
