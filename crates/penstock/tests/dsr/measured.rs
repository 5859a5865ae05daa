//! What `/metrics` says of a service: its data path, what became of packets, and what each backend got.

use serde_json::Value;
use testing::tools::{self, Root};
use testing::{eventually, secs};

use super::network::{BALANCER, CHECKED, Network, SERVERS, VIP, config};

#[test]
fn the_metrics_say_where_packets_are_forwarded_and_what_became_of_them() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for path in ["af_packet", "tc", "xdp-generic"] {
        let listener = format!("data-path = \"{path}\"");
        let config = config(&format!("\"{VIP}:80\""), &listener, CHECKED);
        let server = network.balancer(&format!("{config}[admin]\nbind = \"127.0.0.1:9900\"\n"));
        eventually("both accept the address", secs(20), || {
            let backends = server.ctl_json(&["dsr", "status"])["services"][0]["backends"].clone();
            let is_up = |one: &Value| one["vip"]["state"] == "up" && one["ethernet"].is_string();
            backends.as_array()?.iter().all(is_up).then_some(())
        });
        let metrics = || network.run(BALANCER, &["curl", "-s", "-m", "5", "http://127.0.0.1:9900/metrics"]);
        // The sum of all lines with this name and these labels.
        let value = |text: &str, name: &str, labels: &[&str]| -> Option<u64> {
            let of = |line: &&str| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
                    && labels.iter().all(|label| line.contains(label))
            };
            let values: Vec<u64> = text
                .lines()
                .filter(of)
                .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64)
                .collect();
            (!values.is_empty()).then(|| values.iter().sum())
        };
        let here = ["listener=\"web\"", "address=\"10.77.0.100:80\""];
        let text = metrics();
        let of_path = format!("path=\"{path}\"");
        let name = "penstock_listener_data_path";
        assert_eq!(value(&text, name, &[here[0], here[1], &of_path]), Some(1), "{path}: {text}");
        assert_eq!(text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count(), 1);
        let seen: Vec<_> = (0..30).map(|_| network.visit(VIP)).collect();
        let backends = [("10.77.0.14:80", "2"), ("10.77.0.15:80", "3")];
        let forwarded = ["verdict=\"forwarded\"", here[0], here[1]];
        let dropped = ["verdict=\"dropped\"", "reason=\"packet-no-backend\"", here[0], here[1]];
        // At least SYN, ACK, request, FIN, and what they take.
        eventually("requests are counted", secs(20), || {
            let text = metrics();
            let all = value(&text, "penstock_dsr_packets_total", &forwarded)?;
            let mut sum = 0;
            for (backend, name) in backends {
                let requests = seen.iter().filter(|server| *server == name).count() as u64;
                let labels = [here[0], here[1], "pool=\"app\"", &format!("backend=\"{backend}\"")];
                let packets = value(&text, "penstock_dsr_backend_packets_total", &labels)?;
                let bytes = value(&text, "penstock_dsr_backend_bytes_total", &labels)?;
                value(&text, "penstock_dsr_backend_flows", &labels)?;
                if packets < 4 * requests || bytes < 60 * packets || bytes > 1000 * packets {
                    return None;
                }
                sum += packets;
            }
            (all >= 120 && sum == all).then_some(())
        });
        assert_eq!(value(&metrics(), "penstock_dsr_packets_total", &dropped).unwrap_or(0), 0, "{path}");
        SERVERS.iter().for_each(|server| network.set_vip(*server, "del", VIP));
        eventually("none accepts the address", secs(20), || {
            let backends = server.ctl_json(&["dsr", "status"])["services"][0]["backends"].clone();
            backends.as_array()?.iter().all(|one| one["vip"]["state"] == "down").then_some(())
        });
        eventually("drops are counted", secs(20), || {
            assert!(!network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success());
            (value(&metrics(), "penstock_dsr_packets_total", &dropped)? > 0).then_some(())
        });
        SERVERS.iter().for_each(|server| network.set_vip(*server, "add", VIP));
        super::paths::stop(server);
    }
}
