//! `bandwidth` of a listener and of a route as the file has it.

use logic::bandwidth::Per;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{RateText, SizeText};
use crate::de::Key;

/// `bandwidth`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawBandwidth {
    /// Bytes a second to the client, from `"1KiB/s"` to `"1024GiB/s"`. Without it they have no limit.
    #[schemars(extend("examples" = ["1MiB/s"]))]
    pub(crate) down: Key<RateText>,
    /// Bytes a second from the client. Without it they have no limit.
    #[schemars(extend("examples" = ["256KiB/s"]))]
    pub(crate) up: Key<RateText>,
    /// Bytes that go at full speed at the beginning and after a pause, in each direction: at least what the limit allows
    /// in a hundredth of a second.
    #[schemars(extend("x-default" = "what the limit allows in a second", "examples" = ["64KiB"]))]
    pub(crate) burst: Key<SizeText>,
    /// Which sessions share the limit. `"session"`: none; with HTTP each request has its own, otherwise each connection.
    /// `"source"`: all sessions of one address (a network of `process.shares.ipv4-prefix` or `ipv6-prefix` counts as one; behind a
    /// PROXY header or `trusted-proxies` the client behind it). The sessions of a Unix socket then have a limit each.
    /// `"listener"`: all sessions of the listener. Sessions that share a limit get equal parts.
    #[schemars(extend("default" = Per::default().as_str(), "enum" = Per::WORDS))]
    pub(crate) per: Key<String>,
}

/// `bandwidth` of a route
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawRouteBandwidth {
    /// Bytes a second to the client, from `"1KiB/s"` to `"1024GiB/s"`. Without it they have no limit.
    #[schemars(extend("examples" = ["1MiB/s"]))]
    pub(crate) down: Key<RateText>,
    /// Bytes a second from the client. Without it they have no limit.
    #[schemars(extend("examples" = ["256KiB/s"]))]
    pub(crate) up: Key<RateText>,
    /// Bytes that go at full speed at the beginning and after a pause, in each direction.
    #[schemars(extend("x-default" = "what the limit allows in a second", "examples" = ["64KiB"]))]
    pub(crate) burst: Key<SizeText>,
}
