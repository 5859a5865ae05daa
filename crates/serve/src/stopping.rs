//! What a stop means for the addresses of `dsr` listeners: no session of theirs runs in this process, so none drains.

use config::types::Listener;
use logic::dsr::path::{AtStop, Rung};
use proxy::front::Front;
use state::dsr::ServiceReport;
use state::dsr::start_confirmation::Phase;
use text::units;

/// A sentence for each of the addresses that are served.
pub(crate) fn of_services(front: &Front) -> Vec<String> {
    let snapshot = front.snapshot.load();
    let is_confirmed = front.state.services.start_confirmation.phase() == Phase::Settled;
    let services = front.state.services.all().into_iter().map(|(report, _)| report);
    // Sessions of one without packets drain as those of any listener.
    let services = services.filter(|service| service.path != Rung::Proxy.as_str());
    let all = services.map(|service| {
        let of = |listener: &&Listener| *listener.name == *service.listener;
        let settings = snapshot.config.listeners.iter().find(of).and_then(Listener::dsr);
        let at_stop = settings.map_or(AtStop::Detach, |settings| settings.at_stop);
        sentence(&service, if is_confirmed { at_stop } else { AtStop::Detach })
    });
    all.collect()
}

fn sentence(service: &ServiceReport, at_stop: AtStop) -> String {
    let ServiceReport { address, listener, flows, .. } = service;
    let in_kernel = service.path != Rung::AfPacket.as_str();
    if in_kernel && at_stop == AtStop::Keep {
        return format!("{address} is still forwarded, by the kernel (at-stop = \"keep\")");
    }
    let are_cut = match flows {
        0 => "no flow is remembered".to_owned(),
        1 => "1 remembered flow is cut".to_owned(),
        flows => format!("{} are cut", units::count(*flows, "remembered flow")),
    };
    let instead = match (in_kernel, at_stop) {
        (true, _) => format!(" (at-stop = \"keep\" of listener.{listener} lets them go on)"),
        (false, AtStop::Keep) => " (at-stop = \"keep\" needs a data path in the kernel)".to_owned(),
        (false, AtStop::Detach) => String::new(),
    };
    format!("{address} is no longer forwarded: {are_cut}{instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(path: &'static str, flows: usize) -> ServiceReport {
        ServiceReport {
            listener: "video".to_owned(),
            address: "192.0.2.10:80".to_owned(),
            transport: "tcp",
            path,
            mode: "l2",
            ownership: "owner",
            interface: "eth1".to_owned(),
            ethernet: None,
            pool: "app".to_owned(),
            flows,
            max_flows: 9,
            packets: 0,
            bytes: 0,
            passed: 0,
            answered: 0,
            dropped: std::collections::BTreeMap::new(),
            traces: 0,
            tarpit: None,
            backends: Vec::new(),
        }
    }

    #[test]
    fn flows_are_cut_unless_the_kernel_keeps_them() {
        let said = |path, at_stop, flows| sentence(&service(path, flows), at_stop);
        assert_eq!(
            said("tc", AtStop::Detach, 3),
            "192.0.2.10:80 is no longer forwarded: 3 remembered flows are cut (at-stop = \"keep\" of listener.video lets them go on)"
        );
        assert_eq!(
            said("tc", AtStop::Keep, 3),
            "192.0.2.10:80 is still forwarded, by the kernel (at-stop = \"keep\")"
        );
        assert_eq!(
            said("af_packet", AtStop::Detach, 1),
            "192.0.2.10:80 is no longer forwarded: 1 remembered flow is cut"
        );
        assert!(
            said("af_packet", AtStop::Keep, 0).contains("no flow is remembered (at-stop = \"keep\" needs")
        );
    }
}
