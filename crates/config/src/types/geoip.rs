use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use logic::acl::Countries;

/// `[geoip]`
#[derive(Clone, PartialEq, Eq)]
pub struct GeoIp {
    /// File of the database. A reload reads it again.
    pub database: PathBuf,
    /// The networks in it.
    pub countries: Arc<Countries>,
}

/// Without the networks, of which there may be a million.
impl fmt::Debug for GeoIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GeoIp").field(&self.database).finish()
    }
}
