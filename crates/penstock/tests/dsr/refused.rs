//! What cannot be served, and what is said of it.

use testing::tools::{self, Root};

use super::network::{BALANCER, Network, VIP, config};

#[test]
fn an_interface_that_is_missing_and_an_address_of_this_machine_are_refused_with_what_to_do() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let said = |config: &str| {
        let output = network.setup(config).output();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let good = config(&format!("\"{VIP}:80\""), "", "");
    let text = said(&good.replace("eth0", "eth7"));
    assert!(
        text.contains(
            "listener.web: cannot listen on 10.77.0.100:80: there is no network interface \"eth7\": `ip link`"
        ),
        "{text}"
    );
    let text = said(&good.replace("eth0", "lo"));
    assert!(text.contains("lo is no Ethernet interface"), "{text}");
    network.run(BALANCER, &["ip", "addr", "add", &format!("{VIP}/32"), "dev", "lo"]);
    let text = said(&good);
    assert!(text.contains("this machine has the address") && text.contains("remove it"), "{text}");
}

#[test]
fn without_the_right_to_packets_the_start_says_which_one_it_needs() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let good = config(&format!("\"{VIP}:80\""), "", "").replace("user = \"nobody\"\n", "");
    let output = network.setup_through(&good, ["setpriv", "--bounding-set", "-net_raw"]).output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("it needs CAP_NET_RAW"), "{text}");
}

#[test]
fn a_second_process_with_the_same_address_on_the_interface_is_refused_on_every_path() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    for (first, second) in [("tc", "auto"), ("tc", "af_packet"), ("af_packet", "af_packet")] {
        let of = |path: &str, more: &str| {
            config(&format!("\"{VIP}:80\""), &format!("data-path = \"{path}\"\n{more}"), "health = \"off\"")
        };
        let server = network.balancer(&of(first, ""));
        let output = network.setup(&of(second, "")).output();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success()
                && text.contains("another process forwards what comes to this address on eth0"),
            "{text}"
        );
        // It has the address for TCP alone, and a reload may give it to another listener.
        drop(network.balancer(&of("af_packet", "transport = \"udp\"")));
        server.write_config(&of("auto", "").replace("listener.web", "listener.site"));
        assert!(server.ctl(&["reload"]).status.success());
        drop(server);
        drop(network.balancer(&of(second, "")));
    }
}
