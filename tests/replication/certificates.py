"""Certificates of nodes, for `--cluster-tls`."""

import subprocess

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    """A certificate authority for nodes, with files in `folder`."""

    def __init__(self, folder, name="ca"):
        self.folder, self.name = folder, name
        self.ca = folder / f"{name}.pem"
        self._openssl(
            "req", "-x509", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem",
            "-subj", f"/CN={name}", "-days", "2",
        )  # fmt: skip

    def _openssl(self, *words):
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def issue(self, name, *names, ca=None):
        """Issues a certificate for these names (`DNS:n1`, `IP:127.0.0.1`). Returns its files as an argument of
        `--cluster-tls`."""
        file = f"{self.name}-{name}"
        extensions = self.folder / f"{file}.ext"
        extensions.write_text(f"basicConstraints=CA:FALSE\nsubjectAltName={','.join(names)}\n")
        self._openssl("req", *KEY, "-keyout", f"{file}.key", "-out", f"{file}.csr", "-subj", f"/CN={name}")
        self._openssl(
            "x509", "-req", "-in", f"{file}.csr", "-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key",
            "-CAcreateserial", "-out", f"{file}.pem", "-days", "2", "-extfile", str(extensions),
        )  # fmt: skip
        return f"{self.folder}/{file}.pem,{self.folder}/{file}.key,{ca or self.ca}"
