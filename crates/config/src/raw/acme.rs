//! `[acme.NAME]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Key, OneOrMany, PathText};
use crate::de::At;

/// `[acme.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAcme {
    /// What is ordered: one certificate for each entry, which is a host name or a list of them. Files and messages call
    /// it by its first name. Wildcards are not possible: they need a validation by DNS.
    #[schemars(extend("x-required" = true, "x-list-example" = "[[\"example.org\", \"www.example.org\"]]"))]
    pub(crate) names: Key<Vec<At<OneOrMany<String>>>>,
    /// `true` says that you have read the terms of service of the authority, and agree to them.
    #[schemars(extend("x-required" = true, "examples" = [true]))]
    pub(crate) terms_agreed: Key<bool>,
    /// Where the authority writes to when something is wrong with a certificate: an address of e-mail, or several.
    #[schemars(extend("x-default" = "none", "examples" = ["admin@example.org"]))]
    pub(crate) contact: Key<OneOrMany<String>>,
    /// URL of the directory of the authority.
    #[schemars(extend("default" = "https://acme-v02.api.letsencrypt.org/directory"))]
    pub(crate) directory: Key<String>,
    /// How the authority sees that the names are yours: `"http-01"` asks port 80 of each name, and any listener here
    /// that speaks plain HTTP answers; `"tls-alpn-01"` asks port 443, and any listener here with `tls` answers.
    #[schemars(extend("default" = "http-01", "enum" = ["http-01", "tls-alpn-01"]))]
    pub(crate) challenge: Key<String>,
    /// File with the certificates of those who may have signed the authority's own HTTPS certificate.
    #[schemars(extend("x-default" = "those that the system trusts"))]
    pub(crate) ca: Key<PathText>,
    /// Profile of the certificates, as the authority names them: `"shortlived"`.
    #[schemars(extend("x-default" = "the authority's choice"))]
    pub(crate) profile: Key<String>,
    /// Account that you have with the authority already, which it wants to see at registration (RFC 8555 section 7.3.4).
    pub(crate) external_account: Key<RawExternalAccount>,
}

/// `external-account`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawExternalAccount {
    /// Its identifier, which the authority calls key ID.
    #[schemars(extend("x-required" = true, "examples" = ["kid-1"]))]
    pub(crate) id: Key<String>,
    /// File with its HMAC key as the authority gives it, in base64url.
    #[schemars(extend("x-required" = true, "examples" = ["/etc/penstock/eab.key"]))]
    pub(crate) key_file: Key<PathText>,
}
