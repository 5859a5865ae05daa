//! A client and a backend on networks of their own, with the balancer between them: three network namespaces.

use testing::network::Machine;

/// What comes before the last number of an address on the network of the clients, and on that of the backends.
pub(crate) const CLIENTS: (&str, &str) = ("198.51.100", "2001:db8:1:");
pub(crate) const BACKENDS: (&str, &str) = ("203.0.113", "2001:db8:2:");

/// Makes client, balancer and backend. The balancer has the last number 1 on `clients` and `backends`, the others have 2 on
/// `eth0`. The MTU is 1500.
pub(crate) fn machines(names: [&str; 3]) -> [Machine; 3] {
    let [client, balancer, backend] = names.map(Machine::new);
    for (far, near, (v4, v6)) in [(&client, "clients", CLIENTS), (&backend, "backends", BACKENDS)] {
        balancer.ip(&["link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", far.name()]);
        for (machine, device, last) in [(&balancer, near, 1), (far, "eth0", 2)] {
            machine.ip(&["addr", "add", &format!("{v4}.{last}/24"), "dev", device]);
            machine.ip(&["addr", "add", &format!("{v6}:{last}/64"), "dev", device]);
            machine.ip(&["link", "set", device, "mtu", "1500", "up"]);
        }
    }
    [client, balancer, backend]
}
