//! Whether backends accept the virtual addresses of `dsr` listeners, beside their health.

use serde::Serialize;
use state::dsr::VipReport;
use text::terminal::line;

/// What the probes of a service say of a backend of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    /// NAME of `[listener.NAME]`.
    pub listener: String,
    /// The virtual address with its port.
    pub address: String,
    #[serde(flatten)]
    pub vip: VipReport,
}

impl ProbeReport {
    pub(super) fn line(&self) -> String {
        let ProbeReport { listener, address, vip } = self;
        let cause = vip.cause.as_ref().map_or(String::new(), |cause| format!(": {}", line(cause)));
        format!("at {} of listener.{}: {}{cause}", line(address), line(listener), vip.state)
    }
}
