//! `tls.client-certificates` of a listener.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::Key;
use super::forms::{OneOrMany, PathText};
use crate::de::At;

/// `client-certificates`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawClientCertificates {
    /// `"require"` lets nobody in without a certificate, `"request"` also those that have none. Who sends one that is not
    /// good is never let in.
    #[schemars(extend("default" = "require", "enum" = ["require", "request"]))]
    pub(crate) mode: Key<String>,
    /// File of CA certificates in PEM, or directory of such files (`.pem`, `.crt`, `.cer`). It is watched: what changes
    /// there holds within a second, also for sessions that are resumed; open connections go on. A broken file leaves what
    /// it held in service.
    #[schemars(extend("x-required" = true, "examples" = ["/etc/penstock/client-ca.pem"]))]
    pub(crate) ca: Key<PathText>,
    /// Files of revocation lists, in PEM or DER, or directories of them (`.crl`, `.pem`, `.der`); watched like `ca`.
    #[schemars(extend("default" = json!([])))]
    pub(crate) crl: Key<OneOrMany<PathText>>,
    /// With revocation lists: what becomes of a certificate, or an intermediate one, that no list speaks of, and of lists
    /// that are out of date. `"refuse"` lets such clients not in; `"allow"` does, and goes by old lists, too.
    #[schemars(extend("default" = "refuse", "enum" = ["refuse", "allow"]))]
    pub(crate) unknown_revocation: Key<String>,
    /// Names of which a certificate must have one: `"dns:*.example.com"`, `"uri:spiffe://example.com/web/*"`,
    /// `"email:*@example.com"` (of subjectAltName), or `"cn:NAME"` (common name). Without any, every certificate of the CAs
    /// will do.
    #[schemars(extend("default" = json!([])))]
    pub(crate) names: Key<Vec<At<String>>>,
    /// What backends are told of a verified certificate over HTTP: `"certificate"` is `Client-Cert` and `"chain"`
    /// `Client-Cert-Chain` (RFC 9440); `"subject"`, `"names"`, `"serial"` and `"fingerprint"` (SHA-256) are
    /// `X-Client-Cert-Subject` and so on. What clients send under such names is dropped on every listener, also as
    /// `Client_Cert`. A value of more than 16 KiB is left out.
    #[schemars(extend("x-default" = "all but `\"chain\"`"))]
    pub(crate) headers: Key<Vec<At<String>>>,
}
