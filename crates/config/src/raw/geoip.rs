//! `[geoip]` as the file has it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::PathText;
use crate::de::Key;

/// `[geoip]`
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawGeoIp {
    /// File in the MaxMind DB format with the countries of addresses, such as GeoLite2-Country or GeoLite2-City; up to 512 MiB.
    /// Penstock has none of its own. A reload reads it again, and is refused if it is damaged or has no countries.
    #[schemars(extend("x-required" = true, "examples" = ["/var/lib/GeoIP/GeoLite2-Country.mmdb"]))]
    pub(crate) database: Key<PathText>,
}
