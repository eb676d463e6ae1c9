//! What Prometheus reads is what the allocator counts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use larder::metrics::{Exporter, page};
use larder_core::types::MIB;
use larder_core::{Allocator, Config, Policy, StreamId};
use larder_sim::{SimDevice, SimOptions};

fn get(exporter: &Exporter, path: &str) -> String {
    let mut stream =
        TcpStream::connect(exporter.address().expect("an address")).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn the_page_has_the_figures_of_the_allocator() {
    let device = Arc::new(SimDevice::new(SimOptions::default().memory_bytes(64 * MIB)));
    let allocator = Arc::new(Allocator::new(device, Config::default(), Policy::default()));
    let (small, large) =
        (allocator.malloc(1000, StreamId(0)), allocator.malloc(12 * MIB, StreamId(3)));
    assert!(small.is_ok() && large.is_ok());
    assert!(allocator.malloc(100 * MIB, StreamId(0)).is_err());
    let shown = Arc::clone(&allocator);
    let exporter = Exporter::serve("127.0.0.1:0", move || page([&*shown])).expect("a free port");
    let answer = get(&exporter, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    let stats = allocator.stats();
    for line in [
        format!(
            "larder_allocated_bytes{{device=\"0\",pool=\"small\"}} \
                 {}",
            stats.allocated_bytes.small_pool.current
        ),
        format!(
            "larder_reserved_bytes{{device=\"0\",pool=\"large\"}} \
                 {}",
            stats.reserved_bytes.large_pool.current
        ),
        format!("larder_allocations_total{{device=\"0\"}} {}", stats.allocation.all.allocated),
        "larder_ooms_total{device=\"0\"} 1".to_owned(),
        "larder_lane_live_bytes{device=\"0\",stream=\"3\",pool=\"large\",private_pool=\"\"} \
         12582912"
            .to_owned(),
        "larder_device_total_bytes{device=\"0\"} 67108864".to_owned(),
        "# EOF".to_owned(),
    ] {
        assert!(answer.contains(&format!("{line}\n")), "{line} is not in\n{answer}");
    }
    assert!(get(&exporter, "/other").starts_with("HTTP/1.1 404"));
    let address = exporter.address().expect("an address");
    drop(exporter);
    // The server's own thread closes the port, a moment later.
    let is_closed = (0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        TcpStream::connect(address).is_err()
    });
    assert!(is_closed, "it listens no more");
}
