//! `limits` and `timeouts` of a listener as the file has them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{DurationText, SizeText};
use crate::de::Key;

/// `limits`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawLimits {
    /// Total size of request line and header fields; also for responses of backends. Trailers have at most
    /// 8 KiB and 32 lines, over HTTP/2 too.
    #[schemars(extend("default" = "32KiB"))]
    pub(crate) head: Key<SizeText>,
    /// Number of header fields.
    #[schemars(extend("default" = 100, "minimum" = 1, "maximum" = 10000))]
    pub(crate) headers: Key<i64>,
    /// Request target (path and query).
    #[schemars(extend("default" = "8KiB"))]
    pub(crate) target: Key<SizeText>,
    /// Largest number of parallel requests on one HTTP/2 connection. Together, the heads of those that are served may be
    /// eight times as large as `head`, and always 320 KiB. Further requests, of 512 KiB together, wait for the end of others,
    /// ten seconds at most; one beyond that is refused (REFUSED_STREAM). `http2` limits their bodies.
    #[schemars(extend("default" = 100, "minimum" = 1, "maximum" = 10000))]
    pub(crate) streams: Key<i64>,
    /// Number of times that a request may pass through Penstock, including this time. One more is a loop, and gets 508.
    /// Each time adds `penstock` to the request's `CDN-Loop` (RFC 8586), also for backends that are not Penstock.
    #[schemars(extend("default" = 8, "minimum" = 1, "maximum" = 100))]
    pub(crate) hops: Key<i64>,
    /// Size of the request body; `"none"` is not a limit: bodies are streamed, never held in memory as a whole.
    #[schemars(extend("default" = "none", "x-also" = ["none"]))]
    pub(crate) body: Key<SizeText>,
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
