//! `[events]`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{PathText, SizeText};
use crate::de::Key;

/// `[events]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawEvents {
    /// `"stderr"` is the process log alone, which has all events in any case. Or a receiver of syslog messages (RFC 5424)
    /// that gets each event as well: `"syslog+udp://10.0.0.9:514"` (RFC 5426), `"syslog+tcp://10.0.0.9:601"` (RFC 6587,
    /// counted) or `"syslog+unix:/dev/log"` (datagrams or a stream). The severity is that of the event: info, warning or
    /// err. A receiver that is away delays nothing: up to 1 MiB of events wait for it, others are counted
    /// (`log_lines_failed`), and an event says when it went and came.
    #[schemars(extend("default" = "stderr", "x-also" = ["stderr"]))]
    pub(crate) target: Key<PathText>,
    /// Facility and name of the program in the messages for `target = "syslog+..."`.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[events]
target = "syslog+udp://10.0.0.9:514"
syslog = { facility = "local3", app-name = "edge" }
"#))]
    pub(crate) syslog: Key<RawEventSyslog>,
}

/// `syslog` of `[events]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawEventSyslog {
    /// Kind of program that the events come from, for the rules of the receiver.
    #[schemars(extend("default" = "daemon", "enum" = json!(logic::syslog::FACILITIES)))]
    pub(crate) facility: Key<String>,
    /// Name of the program: up to 48 visible ASCII characters.
    #[schemars(extend("default" = "penstock"))]
    pub(crate) app_name: Key<String>,
    /// Largest message, from 1 KiB to 64 KiB: a longer one is cut at its end.
    #[schemars(extend("default" = "8KiB"))]
    pub(crate) max_length: Key<SizeText>,
}
