//! What the configuration says of a service beside its own listener.

use config::types::BindAddress;
use logic::dsr::{Service, Transports};

use crate::snapshot::{ListenerPlan, Snapshot};

/// Ports that a service on every port leaves to services of the same address and interface.
pub(super) fn others(snapshot: &Snapshot, plan: &ListenerPlan, service: Service) -> Vec<(u16, Transports)> {
    if service.port != 0 {
        return Vec::new();
    }
    let interface = plan.settings.dsr().map(|own| &own.interface);
    let all = snapshot.config.listeners.iter().filter_map(|listener| {
        let settings = listener.dsr().filter(|it| Some(&it.interface) == interface)?;
        Some(listener.binds.iter().filter_map(BindAddress::vip).map(|vip| (vip, settings.transports)))
    });
    let same = all
        .flatten()
        .filter(|(vip, _)| vip.port() != 0 && vip.ip().to_canonical() == service.vip.to_canonical());
    same.map(|(vip, transports)| (vip.port(), transports)).collect()
}
