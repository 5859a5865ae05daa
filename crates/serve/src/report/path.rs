//! Where packets of a `dsr` listener are forwarded, in `penstock ctl status --json`.

use serde::Serialize;
use state::ListenerState;
use state::lock::lock;

#[derive(Clone, Debug, Serialize)]
pub struct DataPathReport {
    /// Address of the service.
    pub address: String,
    /// `xdp`, `xdp-generic`, `tc`, `af_packet` or `proxy`.
    pub path: &'static str,
    /// Paths that are not used.
    pub refused: Vec<RefusalReport>,
    /// Why a crash of the process ends it; `None` if it goes on, or is the process.
    pub unpinned: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RefusalReport {
    pub path: &'static str,
    pub reason: String,
}

pub(super) fn read(state: &ListenerState) -> Vec<DataPathReport> {
    let paths = lock(&state.paths);
    let report = |(address, path): (&String, &state::data_path::PathReport)| DataPathReport {
        address: address.clone(),
        path: path.rung.as_str(),
        refused: path
            .refused
            .iter()
            .map(|one| RefusalReport { path: one.rung.as_str(), reason: one.reason.clone() })
            .collect(),
        unpinned: path.unpinned.clone(),
    };
    paths.iter().map(report).collect()
}
