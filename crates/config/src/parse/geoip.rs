//! `[geoip]`: the database that knows the countries of addresses.

use std::sync::Arc;

use super::parser::Parser;
use crate::environment::Environment;
use crate::geoip::{self, MAX_FILE};
use crate::raw::RawConfig;
use crate::tree::Nodes;
use crate::types::GeoIp;

impl Parser<'_> {
    /// `Some(None)` without the section.
    pub(super) fn geoip(&mut self, raw: &RawConfig, env: &Environment) -> Option<Option<GeoIp>> {
        let Some(section) = &raw.geoip else {
            return (!self.nodes.is_broken(Nodes::ROOT, "geoip")).then_some(None);
        };
        let key = section.value.database.as_ref()?;
        let database = self.file(key)?;
        let shown = self.nodes.show(key.id, key.value.as_ref());
        let wrong = match (env.read)(&database, MAX_FILE) {
            Ok(bytes) if bytes.len() > MAX_FILE => format!("{shown} is longer than 512 MiB"),
            Ok(bytes) => match geoip::read(&bytes) {
                Ok(countries) => return Some(Some(GeoIp { database, countries: Arc::new(countries) })),
                Err(why) => format!("{shown} {why}"),
            },
            Err(error) => format!("{shown} cannot be read: {error}"),
        };
        drop(self.report.at(self.nodes, key.id, wrong));
        None
    }
}
