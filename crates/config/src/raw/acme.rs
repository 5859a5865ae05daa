//! `[acme.NAME]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{DurationText, OneOrMany, PathText};
use crate::de::{At, Key};

/// `[acme.NAME]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAcme {
    /// Certificates to order: one for each entry, which is a host name or a list of them. Files and messages use its
    /// first name; those of a wildcard `*.example.org` are called `_wildcard.example.org`. Wildcards need `dns-01`.
    #[schemars(extend("x-required" = true, "x-list-example" = "[[\"example.org\", \"www.example.org\"]]"))]
    pub(crate) names: Key<Vec<At<OneOrMany<String>>>>,
    /// `true` means that you have read the terms of service of the authority, and agree to them.
    #[schemars(extend("x-required" = true, "examples" = [true]))]
    pub(crate) terms_agreed: Key<bool>,
    /// Mail addresses to which the authority reports problems with a certificate: one, or several.
    #[schemars(extend("x-default" = "none", "examples" = ["admin@example.org"]))]
    pub(crate) contact: Key<OneOrMany<String>>,
    /// URL of the directory of the authority.
    #[schemars(extend("default" = "https://acme-v02.api.letsencrypt.org/directory"))]
    pub(crate) directory: Key<String>,
    /// Validation that the names are yours: with `"http-01"` the authority asks port 80 of each name, and any listener
    /// here that speaks plain HTTP answers; with `"tls-alpn-01"` it asks port 443, and any listener here with `tls`
    /// answers; with `"dns-01"` it asks the DNS for a record, which penstock adds for that time with an update.
    #[schemars(extend("default" = "http-01", "enum" = ["http-01", "tls-alpn-01", "dns-01"]))]
    pub(crate) challenge: Key<String>,
    /// What adds and removes records for `dns-01`: a name server that takes updates of the zones (RFC 2136), `server` with
    /// `key-file`, or `command`. At the name server, a name whose `_acme-challenge` is a CNAME has its record at the target.
    #[schemars(extend("x-default" = "needed with `dns-01`"))]
    pub(crate) dns: Key<RawDnsUpdates>,
    /// TLSA records of the certificates: a renewed one is used only when its record was visible at every server of the zone for
    /// twice the TTL, and the record of the old one is removed after that has left. Until then the old one stays in use.
    #[schemars(extend("x-default" = "none"))]
    pub(crate) tlsa: Key<RawAcmeTlsa>,
    /// File with the CA certificates that may sign the authority's own HTTPS certificate.
    #[schemars(extend("x-default" = "those that the system trusts"))]
    pub(crate) ca: Key<PathText>,
    /// Profile of the certificates, by the authority's name for it: `"shortlived"`.
    #[schemars(extend("x-default" = "the authority's choice"))]
    pub(crate) profile: Key<String>,
    /// Existing account with the authority, if it requires one at registration (RFC 8555 section 7.3.4).
    pub(crate) external_account: Key<RawExternalAccount>,
}

/// `external-account`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawExternalAccount {
    /// Identifier of the account, which the authority calls key ID.
    #[schemars(extend("x-required" = true, "examples" = ["kid-1"]))]
    pub(crate) id: Key<String>,
    /// File with the HMAC key from the authority, in base64url. Other users must not be able to read it.
    #[schemars(extend("x-required" = true, "examples" = ["/etc/penstock/eab.key"]))]
    pub(crate) key_file: Key<PathText>,
}

/// `tlsa`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAcmeTlsa {
    /// Address of the zone's primary server; the port is 53 if none is given.
    #[schemars(extend("x-required" = true, "examples" = ["192.0.2.53"]))]
    pub(crate) server: Key<String>,
    /// File with the key that signs the updates (TSIG, RFC 8945), as `tsig-keygen` writes it. Other users must not be able to read it.
    #[schemars(extend("x-required" = true, "examples" = ["/etc/penstock/dns.key"]))]
    pub(crate) key_file: Key<PathText>,
    /// Addresses where clients find the certificates. Their ports get the records (`_443._tcp.NAME`); the record of the old
    /// certificate is removed after each address shows the new one.
    #[schemars(extend("x-required" = true, "x-list-example" = "[\"192.0.2.10:443\"]"))]
    pub(crate) services: Key<Vec<At<String>>>,
    /// Servers of the zone to look at; the port is 53 if none is given.
    #[schemars(extend("x-default" = "those of its NS records", "x-list-example" = "[\"192.0.2.53\", \"192.0.2.54\"]"))]
    pub(crate) servers: Key<Vec<At<String>>>,
    /// Time limit of the wait for the record, beyond twice its TTL.
    #[schemars(extend("default" = "15m"))]
    pub(crate) time_limit: Key<DurationText>,
}

/// `dns`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawDnsUpdates {
    /// Address of the zone's primary server; the port is 53 if none is given.
    #[schemars(extend("x-default" = "needed without `command`", "examples" = ["192.0.2.53"]))]
    pub(crate) server: Key<String>,
    /// File with the key that signs the updates (TSIG, RFC 8945), as `tsig-keygen` writes it: `key "NAME" { algorithm
    /// hmac-sha256; secret "..."; };`. Other users must not be able to read it.
    #[schemars(extend("x-default" = "needed without `command`", "examples" = ["/etc/penstock/acme.key"]))]
    pub(crate) key_file: Key<PathText>,
    /// Program with arguments that adds and removes records in place of `server`. It gets three more: `present` or `cleanup`, the
    /// name of the record with a dot at its end, and its value (as lego's `exec` calls its programs). It runs as the user of
    /// `penstock serve`, without the sandbox, in `/`, with `PATH`, `HOME`, `LANG` and `TZ` alone; other than 0 is a failure, and
    /// what it said is in the log. A helper that is started before the sandbox runs it, and no program that a reload adds.
    #[schemars(extend("x-default" = "none", "x-list-example" = "[\"/etc/penstock/dns-hook\", \"--zone\", \"example.org\"]"))]
    pub(crate) command: Key<Vec<At<String>>>,
    /// Time limit of one run of `command`. Then it is ended, and has failed.
    #[schemars(extend("default" = "60s"))]
    pub(crate) time_limit: Key<DurationText>,
    /// Time from an update until the authority is told to look: the zone's other servers get the record a moment later.
    #[schemars(extend("default" = "5s"))]
    pub(crate) wait: Key<DurationText>,
}
