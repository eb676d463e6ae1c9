//! A larder: the allocators of some devices, found by number or by address.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use larder::metrics::{Exporter, page_with_hosts};
use larder::setup::devices::{self, Devices};
use larder::setup::keeping::Keeping;
use larder::setup::pinned::{self, Host};
use larder::setup::settings::{self, Settings};
use larder::setup::{DevicesError, SettingsError};
use larder_core::device::Device;
use larder_core::{Addr, Allocator, Error};
use larder_snapshot::{Epoch, write_on_failure};

use crate::addresses::Addresses;
use crate::border::{Held, Out, Owned, Problem, Status, Text, guard, guard_or, trusting};
use crate::out_of_memory::OutOfMemoryReport;

/// `larder`
pub(crate) struct Larder {
    allocators: Arc<[Allocator]>,
    /// Serves their statistics, where the settings ask for that, for as long as the larder is open.
    _exporter: Option<Exporter>,
    /// Whose an address is; none where there is one device.
    addresses: Option<Addresses>,
    /// The host, where its pinned memory is the one device, and how that is kept.
    host: Option<(Host, Keeping)>,
}

impl Larder {
    fn open(devices: &Devices, settings: &Settings) -> Result<Larder, Problem> {
        let devices = devices.open(trusting)?;
        let allocator = |device: std::sync::Arc<dyn Device>| {
            Allocator::new(device, settings.config.clone(), settings.policy.clone())
        };
        let allocators: Arc<[Allocator]> = devices.into_iter().map(allocator).collect();
        if let Some(path) = &settings.oom_snapshot {
            for allocator in &*allocators {
                write_on_failure(allocator, path, Epoch::default())?;
            }
        }
        let exporter = settings.metrics.and_then(|address| export(address, &allocators));
        let addresses = (allocators.len() > 1).then(Addresses::new);
        Ok(Larder { allocators, _exporter: exporter, addresses, host: None })
    }

    /// Pinned memory for copies to and from devices.
    pub(crate) fn open_pinned(devices: &Devices, settings: &Settings) -> Result<Larder, Problem> {
        let host = Host::open(devices, trusting)?;
        let allocator = host.allocator(settings.pinned.limit_bytes)?;
        let allocators = Arc::from([allocator]);
        let mut hosts = hosts();
        hosts.retain(|host| host.strong_count() > 0);
        hosts.push(Arc::downgrade(&allocators));
        drop(hosts);
        let host = Some((host, settings.pinned.clone()));
        Ok(Larder { allocators, _exporter: None, addresses: None, host })
    }

    /// The host whose pinned memory this is.
    pub(crate) fn host(&self) -> Result<&Host, Problem> {
        self.kept_host().map(|(host, _)| host)
    }

    /// How the host's pinned memory is kept.
    pub(crate) fn keeping(&self) -> Result<&Keeping, Problem> {
        self.kept_host().map(|(_, keeping)| keeping)
    }

    fn kept_host(&self) -> Result<&(Host, Keeping), Problem> {
        let none = || Problem::Argument("`larder` is none of larder_open_pinned's".to_owned());
        self.host.as_ref().ok_or_else(none)
    }

    fn from_environment() -> Result<Larder, Problem> {
        let settings = settings::from_environment()?;
        Larder::open(&devices::from_environment()?, &settings)
    }

    /// The larder of the process. If it cannot be made it is tried again by the next call.
    pub(crate) fn process() -> Result<&'static Larder, Problem> {
        static MAKING: Mutex<()> = Mutex::new(());
        if let Some(larder) = PROCESS.get() {
            return Ok(larder);
        }
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(larder) = PROCESS.get() {
            return Ok(larder);
        }
        let made = Larder::from_environment()?;
        Ok(PROCESS.get_or_init(|| made))
    }

    /// All allocators, in the order of their numbers.
    pub(crate) fn allocators(&self) -> &[Allocator] {
        &self.allocators
    }

    /// The allocator of a device.
    #[inline]
    pub(crate) fn device(&self, number: i32) -> Result<&Allocator, Problem> {
        let found = usize::try_from(number).ok().and_then(|at| self.allocators.get(at));
        found.ok_or_else(|| self.no_device(number))
    }

    #[cold]
    fn no_device(&self, number: i32) -> Problem {
        let count = self.allocators.len();
        Problem::NoDevice(format!("there is no device {number}: this larder has {count}"))
    }

    /// Memory of a device, for use on a stream.
    #[inline]
    pub(crate) fn malloc(
        &self,
        device: i32,
        size_bytes: u64,
        stream: larder_core::StreamId,
    ) -> Result<Addr, Problem> {
        let allocator = self.device(device)?;
        self.handed_out(device, allocator.malloc(size_bytes, stream))
    }

    /// Memory of a device at an address, for use on a stream.
    pub(crate) fn malloc_at(
        &self,
        device: i32,
        size_bytes: u64,
        stream: larder_core::StreamId,
        addr: Addr,
    ) -> Result<Addr, Problem> {
        let allocator = self.device(device)?;
        self.handed_out(device, allocator.malloc_at(size_bytes, stream, addr))
    }

    /// Notes whose an address is that a device handed out, or says in numbers why it had none.
    #[inline]
    fn handed_out(&self, device: i32, given: Result<Addr, Error>) -> Result<Addr, Problem> {
        match given {
            Ok(addr) => {
                self.note(addr, device);
                Ok(addr)
            }
            Err(Error::OutOfMemory(report)) => {
                let numbers = OutOfMemoryReport::new(device, &report);
                let words = match &self.host {
                    Some(_) => pinned::words(&report),
                    None => report.to_string(),
                };
                Err(Problem::OutOfMemory(Box::new((numbers, words))))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The device handed out this address.
    #[inline]
    pub(crate) fn note(&self, addr: Addr, device: i32) {
        if let Some(addresses) = &self.addresses {
            addresses.note(addr, device as usize);
        }
    }

    /// Does something with a live address at the device that it belongs to. The one that the
    /// address points to is asked first; those that do not know it have done nothing.
    #[inline]
    pub(crate) fn at<T>(
        &self,
        addr: Addr,
        act: impl Fn(&Allocator) -> Result<T, Error>,
    ) -> Result<(i32, T), Problem> {
        let Some(addresses) = &self.addresses else {
            // There is one device, unless somebody offered none.
            let only = self.device(0)?;
            return Ok((0, act(only)?));
        };
        let hint = addresses.device_of(addr).unwrap_or(usize::MAX);
        match self.allocators.get(hint).map(&act) {
            Some(Ok(result)) => Ok((hint as i32, result)),
            None | Some(Err(Error::UnknownAddress(_))) => self.search(addr, hint, act),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Does something with a live address at whichever device knows it.
    #[cold]
    fn search<T>(
        &self,
        addr: Addr,
        asked: usize,
        act: impl Fn(&Allocator) -> Result<T, Error>,
    ) -> Result<(i32, T), Problem> {
        for (at, allocator) in self.allocators.iter().enumerate().filter(|&(at, _)| at != asked) {
            match act(allocator) {
                Err(Error::UnknownAddress(_)) => {}
                result => return Ok((at as i32, result?)),
            }
        }
        Err(Error::UnknownAddress(addr).into())
    }
}

/// The pinned memory that is open in the process, which is shown beside every device.
fn hosts() -> MutexGuard<'static, Vec<Weak<[Allocator]>>> {
    static HOSTS: Mutex<Vec<Weak<[Allocator]>>> = Mutex::new(Vec::new());
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the statistics. That it cannot is told, and no reason to keep a program from running: of
/// several processes with the same settings the first has the port.
fn export(address: SocketAddr, allocators: &Arc<[Allocator]>) -> Option<Exporter> {
    let shown = Arc::clone(allocators);
    let page = move || {
        let hosts: Vec<_> = hosts().iter().filter_map(Weak::upgrade).collect();
        page_with_hosts(&*shown, hosts.iter().flat_map(|host| host.iter()))
    };
    let exporter = Exporter::serve(address, page);
    exporter.map_err(|error| eprintln!("larder: no metrics at {address}: {error}")).ok()
}

static PROCESS: OnceLock<Larder> = OnceLock::new();

impl From<DevicesError> for Problem {
    fn from(error: DevicesError) -> Problem {
        let words = error.to_string();
        if error.is_in_text() { Problem::Argument(words) } else { Problem::NoDevice(words) }
    }
}

impl From<SettingsError> for Problem {
    fn from(error: SettingsError) -> Problem {
        Problem::Setting(error.to_string())
    }
}

/// The devices and the settings that a larder is opened with: what the texts say, and the
/// environment where there is none.
pub(crate) fn asked_for(devices: Text, settings: Text) -> Result<(Devices, Settings), Problem> {
    let settings = match settings.read("settings")? {
        Some(text) => settings::parse(text)?,
        None => settings::from_environment()?,
    };
    let devices = match devices.read("devices")? {
        Some(text) => devices::parse(text)?,
        None => devices::from_environment()?,
    };
    Ok((devices, settings))
}

#[unsafe(no_mangle)]
extern "C" fn larder_open(devices: Text, settings: Text, out: Out<Owned<Larder>>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        let (devices, settings) = asked_for(devices, settings)?;
        out.put(Owned::give(Larder::open(&devices, &settings)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_close(larder: Held<Larder>) {
    guard_or((), || {
        // The larder of the process is everybody's.
        if !PROCESS.get().is_some_and(|process| larder.is(process)) {
            drop(larder.take());
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn larder_process(out: Out<Owned<Larder>>) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        out.put(Owned::lend(Larder::process()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_device_count(larder: Held<Larder>) -> i32 {
    larder.read().map_or(0, |larder| larder.allocators.len() as i32)
}

#[unsafe(no_mangle)]
extern "C" fn larder_check(larder: Held<Larder>) -> Status {
    guard(|| {
        for allocator in larder.get("larder")?.allocators() {
            allocator.check().map_err(Problem::Unsound)?;
        }
        Ok(())
    })
}
