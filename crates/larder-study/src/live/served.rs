//! Served: the memory of a program, as the page of statistics tells it that it serves.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use larder_core::types::{PoolId, StreamId};

use super::{LiveLane, Look, Sums};

/// How long a program may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A program that serves its statistics.
pub struct Served {
    host: String,
    path: String,
}

impl Served {
    /// At a port of this machine, `HOST:PORT`, or a whole address; none if it is none of these.
    pub fn at(address: &str) -> Option<Served> {
        let rest = address.strip_prefix("http://").unwrap_or(address);
        let (host, path) = rest.split_once('/').unwrap_or((rest, "metrics"));
        let host =
            if host.parse::<u16>().is_ok() { format!("127.0.0.1:{host}") } else { host.to_owned() };
        let (name, port) = host.rsplit_once(':')?;
        let is_host = !name.is_empty() && port.parse::<u16>().is_ok();
        is_host.then(|| Served { host: host.clone(), path: format!("/{path}") })
    }

    /// Asks for the page.
    pub fn look(&self) -> io::Result<Look> {
        let mut stream = TcpStream::connect(&self.host)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // The oldest version of the protocol has no pieces to put together.
        write!(stream, "GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", self.path, self.host)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.lines().next().unwrap_or_default();
        if !status.contains(" 200") {
            return Err(io::Error::other(format!("it answered '{status}'")));
        }
        read_page(body)
            .ok_or_else(|| io::Error::other("there are no statistics of Larder on its page"))
    }
}

/// Reads a page of statistics; none if it has none of Larder's.
pub fn read_page(page: &str) -> Option<Look> {
    let mut look = Look::default();
    let (mut allocated, mut active, mut retries, mut is_ours) = (0, 0, 0, false);
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let Ok(value) = value.parse::<u64>() else { continue };
        let sums: &mut Sums = &mut look.sums;
        match name {
            "larder_allocated_bytes" => allocated += value,
            "larder_active_bytes" => active += value,
            "larder_requested_bytes" => sums.requested_bytes += value,
            "larder_reserved_bytes" => sums.reserved_bytes += value,
            "larder_live_allocations" => sums.live_allocations += value,
            "larder_segments" => sums.segments += value,
            "larder_allocations_total" => sums.allocations += value,
            "larder_frees_total" => sums.frees += value,
            "larder_ooms_total" => sums.ooms += value,
            "larder_retries_total" => retries += value,
            "larder_pinned_reserved_bytes" => sums.pinned.get_or_insert_default().0 += value,
            "larder_pinned_active_bytes" => sums.pinned.get_or_insert_default().1 += value,
            "larder_lane_reserved_bytes" => lane(&mut look.lanes, labels).reserved_bytes += value,
            "larder_lane_live_bytes" | "larder_lane_waiting_bytes" => {
                lane(&mut look.lanes, labels).used_bytes += value;
            }
            _ => continue,
        }
        is_ours = true;
    }
    look.sums.allocated_bytes = Some(allocated);
    look.sums.active_bytes = Some(active);
    look.sums.retries = Some(retries);
    look.lanes.sort_by_key(|lane| std::cmp::Reverse((lane.reserved_bytes, lane.used_bytes)));
    is_ours.then_some(look)
}

fn lane<'a>(lanes: &'a mut Vec<LiveLane>, labels: &str) -> &'a mut LiveLane {
    let label = |key: &str| {
        let (_, rest) = labels.split_once(&format!("{key}=\""))?;
        rest.split_once('"').map(|(value, _)| value)
    };
    let number = |key: &str| label(key).and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    let pool = label("private_pool").and_then(|text| text.split_once('.'));
    let pool = pool.and_then(|(one, two)| Some(PoolId(one.parse().ok()?, two.parse().ok()?)));
    let (device, stream, pool) =
        (number("device") as u32, StreamId(number("stream")), pool.unwrap_or(PoolId::NONE));
    let is_it = |lane: &LiveLane| (lane.device, lane.stream, lane.pool) == (device, stream, pool);
    let at = lanes.iter().position(is_it).unwrap_or_else(|| {
        lanes.push(LiveLane { device, stream, pool, reserved_bytes: 0, used_bytes: 0 });
        lanes.len() - 1
    });
    &mut lanes[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_hosts_or_whole() {
        let at = |text| Served::at(text).map(|served| served.host + &served.path);
        assert_eq!(at("9400").as_deref(), Some("127.0.0.1:9400/metrics"));
        assert_eq!(at("there:9400").as_deref(), Some("there:9400/metrics"));
        assert_eq!(at("http://there:9400/other").as_deref(), Some("there:9400/other"));
        assert_eq!(at("mine.tape"), None);
        assert_eq!(at("a:b"), None);
    }

    #[test]
    fn a_page_is_read_by_its_names_and_labels() {
        let page = "# TYPE larder_reserved_bytes gauge\n\
                    larder_reserved_bytes{device=\"0\",pool=\"small\"} 2097152\n\
                    larder_reserved_bytes{device=\"0\",pool=\"large\"} 20971520\n\
                    larder_ooms_total{device=\"0\"} 2\n\
                    larder_lane_reserved_bytes{device=\"0\",stream=\"7\",pool=\"large\",\
                    private_pool=\"0.3\"} 5\n\
                    larder_pinned_reserved_bytes 4096\n\
                    larder_pinned_active_bytes 512\n\
                    # EOF\n";
        let look = read_page(page).expect("it is ours");
        assert_eq!((look.sums.reserved_bytes, look.sums.ooms), (23_068_672, 2));
        assert_eq!(look.sums.pinned, Some((4096, 512)));
        assert_eq!(look.lanes[0].pool, PoolId(0, 3));
        assert_eq!((look.lanes[0].stream, look.lanes[0].reserved_bytes), (StreamId(7), 5));
        assert!(read_page("other_total 3\n").is_none());
    }
}
