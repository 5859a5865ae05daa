//! Names of sections that other sections refer to.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use logic::acl::{AccessList, Countries, Geography};
use logic::route::PoolId;

use crate::raw::RawConfig;
use crate::tree::NodeId;

/// All pools of the file, including those with faults.
pub(super) struct PoolNames {
    pub(super) ids: HashMap<String, (PoolId, NodeId)>,
    pub(super) order: Vec<(String, NodeId)>,
    pub(super) used: HashSet<PoolId>,
}

impl PoolNames {
    pub(super) fn new(raw: &RawConfig) -> Self {
        let entries = raw.pool.as_ref().map(|pools| pools.value.0.as_slice()).unwrap_or_default();
        let order: Vec<_> = entries.iter().map(|(name, pool)| (name.clone(), pool.id)).collect();
        let ids =
            order.iter().enumerate().map(|(at, (name, id))| (name.clone(), (PoolId(at), *id))).collect();
        PoolNames { ids, order, used: HashSet::new() }
    }
}

/// All `[acl.NAME]` sections of the file, including those with faults.
#[derive(Default)]
pub(super) struct AclNames {
    /// `None` for a list with faults.
    pub(super) lists: HashMap<String, Option<Arc<AccessList>>>,
    pub(super) order: Vec<(String, NodeId)>,
    pub(super) used: HashSet<String>,
    /// `None` for a database with faults.
    pub(super) countries: Option<Option<Arc<Countries>>>,
}

impl AclNames {
    pub(super) fn geography(&self) -> Geography<'_> {
        match &self.countries {
            Some(Some(countries)) => Geography::Known(countries),
            Some(None) => Geography::None,
            None => Geography::Broken,
        }
    }
}

/// All `[acme.NAME]` sections of the file, including those with faults.
pub(super) struct AcmeNames {
    pub(super) names: Vec<String>,
    /// Parent of the sections' directories.
    pub(super) state: Option<PathBuf>,
}

impl AcmeNames {
    pub(super) fn new(raw: &RawConfig) -> Self {
        let sections = raw.acme.as_ref().map(|acme| acme.value.0.as_slice()).unwrap_or_default();
        Self { names: sections.iter().map(|(name, _)| name.clone()).collect(), state: None }
    }

    pub(super) fn keep_in(&mut self, state_directory: Option<&Path>) {
        self.state = state_directory.map(|state| state.join("acme"));
    }
}
