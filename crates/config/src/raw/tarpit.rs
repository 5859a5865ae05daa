//! `tarpit` of a listener as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::DurationText;
use crate::de::Key;

/// `tarpit`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawTarpit {
    /// Time for which a denied client is held, unless it leaves before or its place is needed.
    #[schemars(extend("default" = "10s"))]
    pub(crate) time: Key<DurationText>,
    /// Largest number of clients that are held at the same time; a further one is closed at once (`denied`).
    #[schemars(extend("default" = 1000, "minimum" = 1, "maximum" = 1_000_000))]
    pub(crate) clients: Key<i64>,
}
