//! `http2` of a listener and of a pool as the file has it.

use logic::http2::flood::{Allowance, Flood};
use logic::room;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{DurationText, SizeText};
use crate::de::Key;

/// `http2` of a listener
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawHttp2 {
    /// Bytes of responses that may wait in memory for a client that does not read them, over all requests of its
    /// connection. At this limit, Penstock reads no more from the backends of these requests, except 4 KiB for each, so
    /// that one request cannot stop the others. Requests with closed flow-control windows may together hold a tenth of it.
    #[schemars(extend("default" = "512KiB"))]
    pub(crate) send_buffer: Key<SizeText>,
    /// Bytes of request bodies that may wait in memory for backends, over all requests of a connection: the
    /// flow-control window of the connection. If uploads to slow backends fill it, other uploads of the connection
    /// stop.
    #[schemars(extend("default" = "1MiB"))]
    pub(crate) receive_window: Key<SizeText>,
    /// Bytes of one request body that may wait in memory for its backend: the flow-control window of a stream.
    #[schemars(extend("default" = "64KiB"))]
    pub(crate) stream_window: Key<SizeText>,
    #[schemars(description = held_heads("requests", "trailers of requests"), extend("default" = "1MiB"))]
    pub(crate) held_heads: Key<SizeText>,
    /// Frames that cost work but transfer no data: the number of each kind that a client may send on one connection, in
    /// a burst and per second. A client that exceeds one loses its connection (ENHANCE_YOUR_CALM). Completed requests
    /// add allowance.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[listener.web]
bind = ":443"
tls = { certificates = "/etc/penstock/certs" }
pool = "app"
http2 = { flood = { pings = { burst = 500, per-second = 50 } } }
"#))]
    pub(crate) flood: Key<RawFlood>,
    /// Longest time that a new connection waits before Penstock reads from it, if connections of the same address (IPv6:
    /// the same network) were ended for floods. The first flood makes the next connection wait 10 ms, and each further
    /// one doubles the time. Ten seconds after the last flood they are forgotten. Connections of trusted proxies do not
    /// wait. `"0s"`: no connection waits. At most `"10s"`.
    #[schemars(extend("default" = "1s"))]
    pub(crate) flood_delay: Key<DurationText>,
}

/// `http2` of a pool
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawBackendHttp2 {
    /// Largest number of concurrent requests on one connection, also where the backend allows more.
    #[schemars(extend("default" = 128, "minimum" = 1, "maximum" = 1000))]
    pub(crate) streams: Key<i64>,
    /// Bytes of one response that may wait in memory for its client: the flow-control window of a stream. The window of
    /// the connection is that of all its streams together.
    #[schemars(extend("default" = "64KiB"))]
    pub(crate) stream_window: Key<SizeText>,
    /// The same for requests that an HTTP/2 client has beside two others on its connection: they use connections of
    /// their own, so that a client which reads nothing holds little.
    #[schemars(extend("default" = "4KiB"))]
    pub(crate) narrow_window: Key<SizeText>,
    /// Bytes of one request body that may wait in memory for a backend that reads nothing.
    #[schemars(extend("default" = "32KiB"))]
    pub(crate) send_buffer: Key<SizeText>,
    /// Largest response head, with 32 bytes more for each field (RFC 9113 section 6.5.2). `limits` of the listener apply
    /// too.
    #[schemars(extend("default" = "256KiB"))]
    pub(crate) response_head: Key<SizeText>,
    #[schemars(description = held_heads("responses", "trailers of responses"), extend("default" = "4MiB"))]
    pub(crate) held_heads: Key<SizeText>,
    #[schemars(description = interim(), extend("default" = "64KiB"))]
    pub(crate) interim: Key<SizeText>,
    /// Frames that cost work but transfer no data: the number of each kind that a backend may send on one connection, in
    /// a burst and per second. A backend that exceeds one loses its connection. Requests add allowance.
    #[schemars(extend("default" = json!({}), "x-example" = r#"[pool.app]
backends = ["10.0.0.21:50051"]
http2 = { flood = { pings = { burst = 500, per-second = 50 } } }
"#))]
    pub(crate) flood: Key<RawFlood>,
}

/// `http2.flood` of a listener or pool
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawFlood {
    /// Streams that a client opens and resets, or misuses so that Penstock has to reset them; streams that a backend
    /// resets.
    #[schemars(extend("default" = allowance(Flood::Resets), "x-default" = said(Flood::Resets)))]
    pub(crate) resets: Key<RawAllowance>,
    /// Streams that a client opens beyond `limits.streams`.
    #[schemars(extend("default" = allowance(Flood::Refused), "x-default" = said(Flood::Refused)))]
    pub(crate) refused: Key<RawAllowance>,
    /// PING frames.
    #[schemars(extend("default" = allowance(Flood::Pings), "x-default" = said(Flood::Pings)))]
    pub(crate) pings: Key<RawAllowance>,
    /// SETTINGS frames.
    #[schemars(extend("default" = allowance(Flood::Settings), "x-default" = said(Flood::Settings)))]
    pub(crate) settings: Key<RawAllowance>,
    /// WINDOW_UPDATE frames.
    #[schemars(extend("default" = allowance(Flood::Windows), "x-default" = said(Flood::Windows)))]
    pub(crate) windows: Key<RawAllowance>,
    /// Frames of DATA and HEADERS without content, and CONTINUATION frames.
    #[schemars(extend("default" = allowance(Flood::Empty), "x-default" = said(Flood::Empty)))]
    pub(crate) empty: Key<RawAllowance>,
    /// HEADERS frames of a backend: heads, interim responses (1xx) and trailers. A new connection begins with a tenth of
    /// `burst`, and each request adds 34. No effect on a listener.
    #[schemars(extend("default" = allowance(Flood::Heads), "x-default" = said(Flood::Heads)))]
    pub(crate) heads: Key<RawAllowance>,
    /// PRIORITY frames, and frames of unknown kinds.
    #[schemars(extend("default" = allowance(Flood::Other), "x-default" = said(Flood::Other)))]
    pub(crate) other: Key<RawAllowance>,
}

impl RawFlood {
    /// Allowance for this kind of frame.
    pub(crate) fn of(&self, flood: Flood) -> &Key<RawAllowance> {
        match flood {
            Flood::Resets => &self.resets,
            Flood::Refused => &self.refused,
            Flood::Pings => &self.pings,
            Flood::Settings => &self.settings,
            Flood::Windows => &self.windows,
            Flood::Empty => &self.empty,
            Flood::Heads => &self.heads,
            Flood::Other => &self.other,
        }
    }
}

/// Frames of one kind in `http2.flood`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAllowance {
    /// Number of frames in a burst.
    #[schemars(extend("minimum" = 1, "maximum" = 1_000_000, "x-default" = "that of the kind"))]
    pub(crate) burst: Key<i64>,
    /// Number of frames per second, for any length of time.
    #[schemars(extend("minimum" = 1, "maximum" = 1_000_000, "x-default" = "that of the kind"))]
    pub(crate) per_second: Key<i64>,
}

fn held_heads(heads: &str, trailers: &str) -> String {
    let share = room::TRAILERS_SHARE;
    format!(
        "Memory of the heads of {heads} and of {trailers} on one connection that came and were not read yet, each field counted \
         as its text and 128 bytes. Beyond it, a head is refused (REFUSED_STREAM); trailers end their stream \
         (ENHANCE_YOUR_CALM) where they would go beyond 1/{share} of it. One alone may be as large as the limit of heads."
    )
}

fn interim() -> String {
    let least = room::LEAST_INTERIM / 1024;
    format!(
        "Size of all interim responses (1xx) to one request, each counted as {least} KiB at least. More ends the request \
         (ENHANCE_YOUR_CALM). `limits.interim` of the listener limits their number."
    )
}

fn said(flood: Flood) -> String {
    let Allowance { burst, per_second } = flood.default_allowance();
    format!("{burst} at once, {per_second} in a second")
}

fn allowance(flood: Flood) -> Value {
    let allowance = flood.default_allowance();
    json!({ "burst": allowance.burst, "per-second": allowance.per_second })
}
