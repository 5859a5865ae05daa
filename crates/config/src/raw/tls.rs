//! `tls` of a listener as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{DurationText, PathText, RawClientCertificates};
use crate::de::{At, Key};

/// `tls`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawTls {
    /// Directory of certificates, watched while it is served: added, renewed or removed files take effect within a
    /// second. It may contain `NAME.crt` and `NAME.key` (with `NAME.ca` for the rest of the chain, `NAME.ocsp` for an
    /// OCSP response and `NAME.pass` for the passphrase of the key), `NAME.pem` with key and chain, and certbot's
    /// `NAME/fullchain.pem` and `NAME/privkey.pem`, also the whole `/etc/letsencrypt`. Clients get the certificate for
    /// the server name in their handshake, ECDSA before RSA if they accept both.
    #[schemars(extend("x-default" = "none; needed without `acme`", "examples" = ["/etc/penstock/certs"]))]
    pub(crate) certificates: Key<PathText>,
    /// NAME of the section `[acme.NAME]` whose certificates are served, instead of a directory or beside it. If both
    /// have a certificate for a name, the one in the directory is used.
    #[schemars(extend("x-default" = "none", "examples" = ["letsencrypt"]))]
    pub(crate) acme: Key<String>,
    /// Certificate for clients that send no server name, or one without a certificate: NAME of its files, or a name
    /// that it is for. Without this key, the files named `default` are used; without these, unknown names are refused,
    /// and clients that send no server name get the only certificate if there is just one.
    #[schemars(extend("x-default" = "`\"default\"`, if there are such files"))]
    pub(crate) default: Key<String>,
    /// File with the passphrase of encrypted keys without their own `NAME.pass`.
    pub(crate) key_passphrase_file: Key<PathText>,
    /// Whether Penstock requests an OCSP response to staple from the responder in a certificate, if there is one. The
    /// response is verified, kept in `process.state-directory`, and renewed before it expires. A `NAME.ocsp` is sent
    /// with either setting. With a revoked certificate no response is sent, and `penstock ctl status` reports it.
    #[schemars(extend("default" = "on", "enum" = ["on", "off"]))]
    pub(crate) ocsp: Key<String>,
    /// Set of versions, ciphers and groups, after Mozilla's guideline: `"intermediate"` is TLS 1.2 and 1.3 with forward
    /// secrecy and keys of 256 bits, `"modern"` the same with TLS 1.3 only, `"compatible"` is `"intermediate"` with
    /// AES-128, as in Mozilla's guideline, RFC 8446 and RFC 9113: for clients that support nothing else, such as Java 8
    /// before 8u161. It is as safe, and graders give four points less. All prefer a key exchange that quantum computers
    /// cannot break. Renegotiation is not supported, so Pen's `ssl_client_renegotiation_interval` has no equivalent.
    /// `penstock tls-grade` rates the result.
    #[schemars(extend("default" = "intermediate", "enum" = ["intermediate", "modern", "compatible"]))]
    pub(crate) policy: Key<String>,
    /// Oldest version of TLS.
    #[schemars(extend("x-default" = "`\"1.2\"`, with `policy = \"modern\"` `\"1.3\"`", "enum" = ["1.2", "1.3"]))]
    pub(crate) min_version: Key<String>,
    /// Ciphers in order of preference, by their OpenSSL or IANA names: `TLS_AES_128_GCM_SHA256`,
    /// `ECDHE-RSA-AES128-GCM-SHA256`.
    #[schemars(extend("x-default" = "those of the policy"))]
    pub(crate) ciphers: Key<Vec<At<String>>>,
    /// Key exchange groups in order of preference: `X25519MLKEM768`, `SecP256r1MLKEM768`, `X25519`, `P-256`, `P-384`.
    #[schemars(extend("x-default" = "those of the policy"))]
    pub(crate) groups: Key<Vec<At<String>>>,
    /// Whose preference of ciphers is used. Clients know whether their processor is fast at AES.
    #[schemars(extend("default" = "client", "enum" = ["client", "server"]))]
    pub(crate) cipher_order: Key<String>,
    /// Time limit of a handshake.
    #[schemars(extend("default" = "10s"))]
    pub(crate) handshake_timeout: Key<DurationText>,
    /// Keys of session tickets, for several nodes that resume each other's sessions: a file with 32 to 1024 random
    /// bytes (`umask 077; openssl rand 48 > FILE`: a file that other users can read is refused), or a directory of such
    /// files, of which the last by name encrypts tickets and all decrypt them. Read again every two seconds. A ticket
    /// is valid for at most twelve hours, independent of the keys. Without this key each process has its own and
    /// replaces them every six hours. Early data (0-RTT) is never accepted.
    #[schemars(extend("x-default" = "keys of our own, replaced every six hours", "examples" = ["/etc/penstock/ticket-keys"]))]
    pub(crate) ticket_keys: Key<PathText>,
    /// Largest number of unfinished handshakes over all workers. When one more begins, the oldest is closed: a stalled
    /// client must not block others.
    #[schemars(extend("default" = 8192, "minimum" = 1, "maximum" = 1_000_000))]
    pub(crate) handshakes: Key<i64>,
    /// Ask clients for certificates. Without this table no certificate is requested.
    #[schemars(extend("x-example" = r#"[listener.secure]
bind = ":443"
tls.certificates = "/etc/penstock/certs"
tls.client-certificates = { ca = "/etc/penstock/client-ca.pem", names = ["dns:*.partner.example"] }
pool = "app"
"#))]
    pub(crate) client_certificates: Key<RawClientCertificates>,
}
