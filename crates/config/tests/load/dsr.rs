//! Listeners of direct server return: from flags, and with every port of an address.

use config::types::BindAddress;
use config::{Environment, Quick, quick};

use super::{bad, good};

#[test]
fn with_dsr_flags_make_a_service_whose_backends_need_no_port() {
    let flags = Quick {
        listen: vec!["192.0.2.10:80".into(), "[2001:db8::10]:80".into()],
        backends: vec![
            "192.0.2.21".into(),
            "192.0.2.22,weight=2".into(),
            "2001:db8::23".into(),
            "[2001:db8::24]".into(),
        ],
        dsr: Some("eth1".into()),
        protocol: Some("tcp-and-udp".into()),
        ..Quick::default()
    };
    let loaded = quick(&flags, &Environment::default()).unwrap_or_else(|faults| panic!("{faults}"));
    let config = &loaded.config;
    let dsr = config.listeners[0].dsr().unwrap();
    assert_eq!((&*dsr.interface, dsr.transports.as_str()), ("eth1", "tcp-and-udp"));
    let backends: Vec<_> = config.pools[0].backends.iter().map(|one| one.address.to_string()).collect();
    assert_eq!(backends, ["192.0.2.21:80", "192.0.2.22:80", "[2001:db8::23]:80", "[2001:db8::24]:80"]);
    assert_eq!(config.pools[0].backends[1].weight, 2);
    let again = good(&loaded.print(), &[]);
    assert_eq!(format!("{:?}", config), format!("{:?}", again.config));
    for listen in ["192.0.2.10", "192.0.2.10:http", "unix:/run/x"] {
        let wrong = Quick { listen: vec![listen.into()], ..flags.clone() };
        let rendered = quick(&wrong, &Environment::default()).unwrap_err().render();
        assert!(
            rendered.contains("error: --listen") && rendered.contains("1 error"),
            "no backend is blamed: {rendered}"
        );
    }
    let wrong = Quick { dsr: Some("eth 1".into()), ..flags };
    let rendered = quick(&wrong, &Environment::default()).unwrap_err().render();
    assert!(rendered.contains("error: --dsr: listener.main.interface"), "{rendered}");
}

#[test]
fn every_port_of_an_address_is_for_packets() {
    let service = |bind: &str, more: &str| {
        format!(
            "[listener.all]\nbind = {bind}\nprotocol = \"dsr\"\ninterface = \"eth0\"\npool = \"a\"\n{more}\
             [pool.a]\nbackends = [\"192.0.2.21:80\"]\nbalance = \"maglev\"\n"
        )
    };
    let one =
        "[listener.web]\nbind = \"192.0.2.10:80\"\nprotocol = \"dsr\"\ninterface = \"eth0\"\npool = \"a\"\n";
    let loaded = good(&service("[\"192.0.2.10:*\", \"[2001:db8::10]:*\"]", one), &[]);
    let binds = &loaded.config.listeners[0].binds;
    assert_eq!(binds[0], BindAddress::EveryPort([192, 0, 2, 10].into()));
    assert_eq!(
        binds.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["192.0.2.10:*", "[2001:db8::10]:*"]
    );
    let again = good(&loaded.print(), &[]);
    assert_eq!(format!("{:?}", loaded.config), format!("{:?}", again.config));
    for (text, expected) in [
        (
            service("\"192.0.2.10:*\"", &one.replace(":80", ":*")),
            "this address is already taken by listener.all",
        ),
        (service("\"0.0.0.0:*\"", ""), "is not an address that clients send packets to"),
        (service("\"192.0.2.10:0\"", ""), "needs a port"),
        (service("\"192.0.2.21:*\"", ""), "is the address of the service itself"),
        (
            service(
                "\"192.0.2.10:*\"",
                "[listener.t]\nbind = \"127.0.0.1:*\"\nprotocol = \"tcp\"\npool = \"a\"\n",
            ),
            "is every port of an address, which only packets are forwarded from",
        ),
    ] {
        let rendered = bad(&text, &[]).render();
        assert!(rendered.contains(expected), "{expected}: {rendered}");
    }
}

#[test]
fn xdp_behind_the_driver_is_refused_with_tunnels() {
    let service = |mode: &str, path: &str| {
        format!(
            "[listener.web]\nbind = \"192.0.2.10:80\"\nprotocol = \"dsr\"\ninterface = \"eth0\"\npool = \"a\"\n\
             mode = \"{mode}\"\ndata-path = \"{path}\"\n\
             [pool.a]\nbackends = [\"192.0.2.21:80\"]\nbalance = \"maglev\"\n"
        )
    };
    let rendered = bad(&service("ipip", "xdp-generic"), &[]).render();
    assert!(
        rendered.contains(
            "listener.web.data-path: \"xdp-generic\" loses large packets on their way into tunnels"
        ) && rendered.contains("data-path = \"auto\", or \"tc\""),
        "{rendered}"
    );
    for (mode, path) in [("l2", "xdp-generic"), ("ipip", "xdp"), ("ipip", "tc"), ("ipip", "auto")] {
        good(&service(mode, path), &[]);
    }
}

#[test]
fn data_paths_that_do_not_go_together_on_an_interface_are_refused_with_what_does() {
    let one = |name: &str, bind: &str, path: &str, interface: &str| {
        format!(
            "[listener.{name}]\nbind = {bind}\nprotocol = \"dsr\"\ninterface = \"{interface}\"\npool = \"a\"\n\
             data-path = \"{path}\"\n"
        )
    };
    let pool = "[pool.a]\nbackends = [\"192.0.2.21:80\"]\nbalance = \"maglev\"\n";
    let both = "[\"192.0.2.10:80\", \"[2001:db8::10]:80\"]";
    let two = |first: &str, second: &str, interface: &str| {
        let parts =
            [one("a", "\"192.0.2.10:80\"", first, "eth0"), one("b", "\"192.0.2.11:80\"", second, interface)];
        parts.concat() + pool
    };
    for (text, expected) in [
        (
            one("a", both, "xdp-generic", "eth0") + pool,
            "listener.a.data-path: \"xdp-generic\" is for one address of an interface, which takes one XDP program: listener.a has 2 on eth0",
        ),
        (one("a", both, "xdp", "eth0") + pool, "\"xdp\" is for one address of an interface"),
        (
            two("xdp-generic", "tc", "eth0"),
            "\"xdp-generic\" does not go together with the data-path \"tc\" of listener.b on eth0",
        ),
        (two("auto", "xdp-generic", "eth0"), "with the data-path \"auto\" of listener.a on eth0"),
        (two("xdp-generic", "xdp-generic", "eth0"), "with the data-path \"xdp-generic\" of listener.b"),
        (
            two("xdp", "xdp", "eth0"),
            "listener.b.data-path: \"xdp\" is the data-path of listener.a on eth0 already",
        ),
    ] {
        let rendered = bad(&text, &[]).render();
        assert!(
            rendered.contains(expected) && rendered.contains("hint: data-path = "),
            "{expected}: {rendered}"
        );
    }
    for (first, second, interface) in [
        ("xdp-generic", "af_packet", "eth0"),
        ("xdp-generic", "tc", "eth1"),
        ("xdp-generic", "xdp-generic", "eth1"),
        ("xdp", "tc", "eth0"),
        ("xdp", "xdp", "eth1"),
        ("tc", "tc", "eth0"),
    ] {
        good(&two(first, second, interface), &[]);
    }
}
