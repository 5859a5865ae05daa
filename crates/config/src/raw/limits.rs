//! `limits` and `timeouts` of a listener as the file has them.

use logic::room;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{DurationText, SizeText};
use crate::de::Key;

/// `limits`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawLimits {
    /// Total size of request line and header fields; also for responses of backends.
    #[schemars(extend("default" = "32KiB"))]
    pub(crate) head: Key<SizeText>,
    /// Number of header fields.
    #[schemars(extend("default" = 100, "minimum" = 1, "maximum" = 10000))]
    pub(crate) headers: Key<i64>,
    /// Request target (path and query).
    #[schemars(extend("default" = "8KiB"))]
    pub(crate) target: Key<SizeText>,
    #[schemars(
        description = streams(),
        extend("default" = 100, "minimum" = 1, "maximum" = 10000)
    )]
    pub(crate) streams: Key<i64>,
    /// Number of times that a request may pass through Penstock, including this time. One more is a loop, and gets 508.
    /// Each time adds `penstock` to the request's `CDN-Loop` (RFC 8586), also for backends that are not Penstock.
    #[schemars(extend("default" = 8, "minimum" = 1, "maximum" = 100))]
    pub(crate) hops: Key<i64>,
    /// Size of the request body; `"none"` is not a limit: bodies are streamed, never held in memory as a whole.
    #[schemars(extend("default" = "none", "x-also" = ["none"]))]
    pub(crate) body: Key<SizeText>,
    /// Size of all trailer lines after a body, of requests and of responses, over HTTP/2 too. The extensions of a chunk have at
    /// most 256 bytes.
    #[schemars(extend("default" = "8KiB"))]
    pub(crate) trailers: Key<SizeText>,
    /// Number of trailer lines.
    #[schemars(extend("default" = 32, "minimum" = 1, "maximum" = 10000))]
    pub(crate) trailer_fields: Key<i64>,
    /// Number of interim responses (1xx) of a backend before its response; together they may be as long as `head`. One more is
    /// answered with 502. Over HTTP/2, `http2.interim` of the pool limits their size too, and `http2.flood.heads` their rate.
    #[schemars(extend("default" = 32, "minimum" = 1, "maximum" = 10000))]
    pub(crate) interim: Key<i64>,
}

fn streams() -> String {
    let (times, least) = (room::LARGE_HEADS, room::LEAST_OF_HEADS / 1024);
    let (waiting, seconds) = (room::WAITING_HEADS / 1024, room::WAITING_SECONDS);
    format!(
        "Largest number of parallel requests on one HTTP/2 connection. Together, the heads of those that are served may be \
         {times} times as large as `head`, and always {least} KiB. Further requests, of {waiting} KiB together, wait for the \
         end of others, {seconds} seconds at most; one beyond that is refused (REFUSED_STREAM). `http2` limits their bodies."
    )
}

/// `timeouts` of a listener
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawHttpTimeouts {
    /// Time limit of a whole request head.
    #[schemars(extend("default" = "10s"))]
    pub(crate) head: Key<DurationText>,
    /// Idle timeout between requests on a connection.
    #[schemars(extend("default" = "60s"))]
    pub(crate) idle: Key<DurationText>,
    /// Timeout between two reads of a request body.
    #[schemars(extend("default" = "30s"))]
    pub(crate) body: Key<DurationText>,
    /// Timeout of a client that reads no byte of the response.
    #[schemars(extend("default" = "30s"))]
    pub(crate) write: Key<DurationText>,
}
