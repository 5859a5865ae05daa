//! `syslog` of `[access-log]`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::SizeText;
use crate::de::Key;

/// `syslog`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawSyslog {
    /// Kind of program that the lines come from, for the rules of the receiver.
    #[schemars(extend("default" = "local0", "enum" = json!(logic::syslog::FACILITIES)))]
    pub(crate) facility: Key<String>,
    /// Severity of every line.
    #[schemars(extend("default" = "info", "enum" = json!(logic::syslog::SEVERITIES)))]
    pub(crate) severity: Key<String>,
    /// Name of the program: up to 48 visible ASCII characters.
    #[schemars(extend("default" = "penstock"))]
    pub(crate) app_name: Key<String>,
    /// Largest message, from 1 KiB to 64 KiB: a longer one is cut at its end. Receivers must take 480 bytes in a datagram,
    /// and should take 2 KiB (RFC 5426); rsyslog takes 8 KiB unless it is told otherwise.
    #[schemars(extend("default" = "8KiB"))]
    pub(crate) max_length: Key<SizeText>,
}
