//! `quic-id` of a `dsr` listener as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::de::Key;

/// `quic-id`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawQuicId {
    /// Bytes of a connection id before the number.
    #[schemars(extend("default" = 1, "minimum" = 0, "maximum" = 19))]
    pub(crate) offset: Key<i64>,
    /// Bytes of the number. It ends within the 20 bytes that a connection id has at most.
    #[schemars(extend("default" = 2, "minimum" = 1, "maximum" = 8))]
    pub(crate) length: Key<i64>,
}
