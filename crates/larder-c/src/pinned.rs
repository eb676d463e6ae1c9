//! Pinned memory of the host: a larder of its own, whose one device is the host.

use larder::setup::settings;
use larder_core::types::HOST_STREAM;
use larder_cuda::HostDevice;
use larder_cuda::host::{HostCalls, PinBy, SIZE_CLASSES, Timed, stream_of};

use crate::border::{Held, Out, Owned, Problem, Status, Text, Token, guard, guard_or};
use crate::larder::{Larder, asked_for};

/// `larder_pinning`
pub(crate) mod pinning {
    pub(crate) const BEST: u32 = 0;
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const DRIVER: u32 = 2;
}

/// `larder_timed_calls`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct TimedCalls {
    pub(crate) count: u64,
    pub(crate) total_us: u64,
    pub(crate) max_us: u64,
    pub(crate) min_us: u64,
}

impl From<Timed> for TimedCalls {
    fn from(timed: Timed) -> TimedCalls {
        let Timed { count, total_us, max_us, min_us } = timed;
        TimedCalls { count, total_us, max_us, min_us }
    }
}

/// `larder_pinned_calls`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PinnedCalls {
    pub(crate) got: TimedCalls,
    pub(crate) given_back: TimedCalls,
    pub(crate) by_size: [u64; SIZE_CLASSES],
}

impl From<HostCalls> for PinnedCalls {
    fn from(calls: HostCalls) -> PinnedCalls {
        let HostCalls { got, given_back, by_size } = calls;
        PinnedCalls { got: got.into(), given_back: given_back.into(), by_size }
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_open_pinned(devices: Text, settings: Text, out: Out<Owned<Larder>>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let (devices, settings) = asked_for(devices, settings)?;
        out.put(Owned::give(Larder::open_pinned(&devices, &settings)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_host_stream() -> Token {
    Token::new(HOST_STREAM.0)
}

#[unsafe(no_mangle)]
extern "C" fn larder_stream_on(device: i32, stream: Token) -> Token {
    guard_or(stream, || Token::new(stream_of(device.unsigned_abs(), stream.number()).0))
}

#[unsafe(no_mangle)]
extern "C" fn larder_set_pinning(larder: Held<Larder>, how: u32, threads: usize) -> Status {
    guard(|| {
        let by = match how {
            pinning::BEST => PinBy::Best,
            pinning::REGISTER => PinBy::Register,
            pinning::DRIVER => PinBy::Driver,
            _ => return Err(Problem::Argument(format!("{how} is no larder_pinning"))),
        };
        // A simulated host has one way alone.
        if let Some(host) = larder.get("larder")?.host()?.real() {
            host.set_pinning(by, threads);
        }
        Ok(())
    })
}

/// `larder_pinned_keeping`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PinnedKeeping {
    pub(crate) limit_bytes: u64,
    pub(crate) ahead_bytes: u64,
    pub(crate) idle_s: u64,
}

#[unsafe(no_mangle)]
extern "C" fn larder_get_pinned_keeping(larder: Held<Larder>, out: Out<PinnedKeeping>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let keeping = larder.get("larder")?.keeping()?;
        out.put(PinnedKeeping {
            limit_bytes: keeping.limit_bytes.unwrap_or(0),
            ahead_bytes: keeping.ahead_bytes.unwrap_or(0),
            idle_s: keeping.idle_s.unwrap_or(0),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_get_pinned_calls(larder: Held<Larder>, out: Out<PinnedCalls>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let host = larder.get("larder")?.host()?;
        // The calls of a simulated host take no time, and nobody counts them.
        out.put(host.real().map_or_else(HostCalls::default, HostDevice::calls).into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_reset_pinned_calls(larder: Held<Larder>, sums: bool, peaks: bool) -> Status {
    guard(|| {
        if let Some(host) = larder.get("larder")?.host()?.real() {
            if sums {
                host.reset_call_sums();
            }
            if peaks {
                host.reset_call_peaks();
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_leaves_pinned(settings: Text, out: Out<bool>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let settings = match settings.read("settings")? {
            Some(text) => settings::parse(text),
            None => settings::from_environment(),
        };
        out.put(settings?.leaves_pinned());
        Ok(())
    })
}
