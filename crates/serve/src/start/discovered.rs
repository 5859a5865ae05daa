//! The configuration that is served at the start: with the backends that names in the DNS have.

use std::sync::Arc;

use config::Config;
use state::State;

use crate::discovery::{DISCOVERY, Discoverer, Served};
use crate::needs::Needs;
use crate::reload;

/// Begins the reason.
pub(super) const NOT_SERVED: &str = "the backends that the DNS has now are not served: ";

/// Returns the configuration with the backends that names in the DNS have. As it was written if there are not enough
/// descriptors for that many: who answers the names does not decide whether this process starts.
pub(super) fn discovered(
    discoverer: &mut Discoverer,
    config: &Arc<Config>,
    state: &State,
    descriptors: &Needs,
) -> Arc<Config> {
    if !discoverer.has_names() {
        return config.clone();
    }
    let expanded = discoverer.expand(config);
    match descriptors.divide(&expanded) {
        Ok(division) => {
            reload::set_limits(state, &expanded, descriptors, division);
            discoverer.note(Served::Is);
            Arc::new(expanded)
        }
        Err(few) => {
            state.degrade(DISCOVERY, &format!("{NOT_SERVED}{few}"));
            discoverer.note(Served::Not);
            config.clone()
        }
    }
}
