//! `tls.client-certificates` of a listener.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::forms::{OneOrMany, PathText};
use crate::de::{At, Key};

/// `client-certificates`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawClientCertificates {
    /// `"require"` rejects clients without a certificate, `"request"` accepts them. A client with an invalid
    /// certificate is always rejected.
    #[schemars(extend("default" = "require", "enum" = ["require", "request"]))]
    pub(crate) mode: Key<String>,
    /// File of CA certificates in PEM, or directory of such files (`.pem`, `.crt`, `.cer`). It is watched: changes take
    /// effect within a second, also for resumed sessions; open connections continue. If a file becomes invalid, its
    /// last valid contents stay in use.
    #[schemars(extend("x-required" = true, "examples" = ["/etc/penstock/client-ca.pem"]))]
    pub(crate) ca: Key<PathText>,
    /// Files of revocation lists, in PEM or DER, or directories of them (`.crl`, `.pem`, `.der`); watched like `ca`.
    #[schemars(extend("default" = json!([])))]
    pub(crate) crl: Key<OneOrMany<PathText>>,
    /// With revocation lists: treatment of a certificate, or an intermediate one, that no list covers, and of lists
    /// that have expired. `"refuse"` rejects such clients; `"allow"` accepts them, and still uses expired lists.
    #[schemars(extend("default" = "refuse", "enum" = ["refuse", "allow"]))]
    pub(crate) unknown_revocation: Key<String>,
    /// Names of which a certificate must contain one: `"dns:*.example.com"`, `"uri:spiffe://example.com/web/*"`,
    /// `"email:*@example.com"` (of subjectAltName), or `"cn:NAME"` (common name). Without this key, every name is
    /// accepted.
    #[schemars(extend("default" = json!([])))]
    pub(crate) names: Key<Vec<At<String>>>,
    /// Header fields about a verified certificate for backends over HTTP: `"certificate"` is `Client-Cert` and
    /// `"chain"` `Client-Cert-Chain` (RFC 9440); `"subject"`, `"names"`, `"serial"` and `"fingerprint"` (SHA-256) are
    /// `X-Client-Cert-Subject` and so on. Such fields from clients are removed on every listener, also in the spelling
    /// `Client_Cert`. A value of more than 16 KiB is left out.
    #[schemars(extend("x-default" = "all but `\"chain\"`"))]
    pub(crate) headers: Key<Vec<At<String>>>,
}
