//! Devices by name: what `larder_open` and the environment call them.

use std::env;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use larder_core::device::Device;
use larder_core::types::GIB;
use larder_cuda::{CudaDevice, CudaError, CudaOptions, driver};
use larder_sim::{SimDevice, SimOptions, Wire, parse_capacity};

use super::error::{DevicesError, NameProblem};
use super::names::SIMULATED_MAX;

/// The variable that names the devices where the program does not.
pub const VARIABLE: &str = "LARDER_DEVICE";
/// The memory of a simulated GPU of which nothing else is said.
const SIMULATED_DEFAULT_BYTES: u64 = 80 * GIB;

/// Devices that are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Every CUDA device of the process.
    AllCuda,
    /// These CUDA devices, in this order.
    Cuda(Vec<u32>),
    /// Simulated GPUs, all alike.
    Simulated {
        /// The memory of each.
        memory_bytes: u64,
        /// How many.
        count: u32,
    },
    /// What somebody in the process offers under this name.
    Offered(&'static str),
}

/// Makes the devices that are offered under a name.
pub type Maker = fn() -> Result<Vec<Arc<dyn Device>>, DevicesError>;

static OFFERS: Mutex<Vec<(&'static str, Maker)>> = Mutex::new(Vec::new());

/// Offers devices under a name, which `larder_open` then takes like any other. The same name again
/// replaces what was offered before.
pub fn offer(name: &'static str, make: Maker) {
    let mut offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    offers.retain(|&(other, _)| other != name);
    offers.push((name, make));
}

fn offered(name: &str) -> Option<(&'static str, Maker)> {
    let offers = OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    offers.iter().copied().find(|&(other, _)| other == name)
}

/// Reads the name of devices: `cuda`, `cuda:0`, `cuda:0,2`, `sim`, `sim:80GiB`, `sim:80GiB*2`, or a
/// name under which devices are offered.
pub fn parse(text: &str) -> Result<Devices, DevicesError> {
    let text = text.trim();
    if let Some((name, _)) = offered(text) {
        return Ok(Devices::Offered(name));
    }
    let wrong = |problem| DevicesError::Text { text: text.to_owned(), problem };
    let (kind, rest) = text.split_once(':').map_or((text, None), |(kind, rest)| (kind, Some(rest)));
    match (kind, rest) {
        ("cuda", None) => Ok(Devices::AllCuda),
        ("cuda", Some(list)) => parse_cuda(list).map(Devices::Cuda).map_err(wrong),
        ("sim", None) => Ok(Devices::Simulated { memory_bytes: SIMULATED_DEFAULT_BYTES, count: 1 }),
        ("sim", Some(size)) => parse_simulated(size).map_err(wrong),
        _ => Err(wrong(NameProblem::Kind)),
    }
}

fn parse_cuda(list: &str) -> Result<Vec<u32>, NameProblem> {
    let mut indices: Vec<u32> = Vec::new();
    for word in list.split(',') {
        let index = word.trim().parse();
        let index = index.map_err(|_| NameProblem::Index(word.to_owned()))?;
        if indices.contains(&index) {
            return Err(NameProblem::Twice(index));
        }
        indices.push(index);
    }
    Ok(indices)
}

fn parse_simulated(text: &str) -> Result<Devices, NameProblem> {
    let (size, count) = text.split_once('*').unwrap_or((text, "1"));
    let count: Option<u32> = count.trim().parse().ok();
    let count = count.filter(|count| (1..=SIMULATED_MAX).contains(count));
    let count = count.ok_or(NameProblem::Count)?;
    Ok(Devices::Simulated { memory_bytes: parse_capacity(size.trim())?, count })
}

/// What the environment asks for; without a word from it, every CUDA device.
pub fn from_environment() -> Result<Devices, DevicesError> {
    match env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => {
            parse(&text).map_err(|error| DevicesError::Variable(VARIABLE, Box::new(error)))
        }
        Err(env::VarError::NotUnicode(_)) => Err(DevicesError::NotUnicode(VARIABLE)),
        _ => Ok(Devices::AllCuda),
    }
}

impl Devices {
    /// Gets hold of the devices. Real ones go through `prepare`, which may vouch for streams.
    pub fn open(
        &self,
        prepare: fn(CudaDevice) -> CudaDevice,
    ) -> Result<Vec<Arc<dyn Device>>, DevicesError> {
        match self {
            Devices::AllCuda | Devices::Cuda(_) => {
                let opened = real(self, prepare)?.into_iter();
                Ok(opened.map(|device| device as Arc<dyn Device>).collect())
            }
            &Devices::Simulated { memory_bytes, count } => {
                let simulated = |index| -> Arc<dyn Device> {
                    let wire = wire();
                    let options =
                        SimOptions::default().index(index).memory_bytes(memory_bytes).wire(wire);
                    Arc::new(SimDevice::new(options))
                };
                Ok((0..count).map(simulated).collect())
            }
            Devices::Offered(name) => {
                let (_, make) = offered(name).ok_or(DevicesError::NotOffered(name))?;
                make()
            }
        }
    }
}

/// All simulated GPUs of the process share what they share with one another.
fn wire() -> Wire {
    static WIRE: OnceLock<Wire> = OnceLock::new();
    WIRE.get_or_init(Wire::default).clone()
}

fn cuda_count() -> Result<u32, DevicesError> {
    if !driver::is_present() {
        return Err(DevicesError::Cuda(CudaError::NoDriver));
    }
    let counted = driver::init().and_then(|()| driver::device_count());
    match counted {
        Ok(count) if count > 0 => Ok(count),
        // The driver's code for a machine with no GPU.
        Ok(_) | Err(larder_core::device::DeviceError::Other { code: 100, .. }) => {
            Err(DevicesError::NoGpu)
        }
        Err(error) => Err(DevicesError::Cuda(CudaError::Driver { call: "start", error })),
    }
}

/// Those of the devices that are real.
pub(super) fn real(
    devices: &Devices,
    prepare: fn(CudaDevice) -> CudaDevice,
) -> Result<Vec<Arc<CudaDevice>>, DevicesError> {
    match devices {
        Devices::AllCuda => open_cuda(0..cuda_count()?, prepare),
        Devices::Cuda(indices) => open_cuda(indices.iter().copied(), prepare),
        Devices::Simulated { .. } | Devices::Offered(_) => Ok(Vec::new()),
    }
}

fn open_cuda(
    indices: impl Iterator<Item = u32>,
    prepare: fn(CudaDevice) -> CudaDevice,
) -> Result<Vec<Arc<CudaDevice>>, DevicesError> {
    // A process may see many GPUs and use one.
    let options = CudaOptions::default().late_context(true);
    let open = |index| -> Result<Arc<CudaDevice>, CudaError> {
        Ok(Arc::new(prepare(CudaDevice::new(index, options)?)))
    };
    let opened: Result<Vec<_>, _> = indices.map(open).collect();
    opened.map_err(DevicesError::Cuda)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_by_name() {
        let simulated =
            |mebibytes: u64, count| Ok(Devices::Simulated { memory_bytes: mebibytes << 20, count });
        assert_eq!(parse("cuda"), Ok(Devices::AllCuda));
        assert_eq!(parse("cuda:2"), Ok(Devices::Cuda(vec![2])));
        assert_eq!(parse(" cuda:2, 0 "), Ok(Devices::Cuda(vec![2, 0])));
        assert_eq!(parse("sim"), simulated(80 << 10, 1));
        assert_eq!(parse("sim:80GiB"), simulated(80 << 10, 1));
        assert_eq!(parse("sim:512MiB*3"), simulated(512, 3));
        assert_eq!(parse("sim:4194304"), simulated(4, 1));
    }

    #[test]
    fn a_name_that_cannot_be_read_says_so_in_one_sentence() {
        let wrong = [
            "",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:0,0",
            "cuda:-1",
            "sim:",
            "sim:GiB",
            "sim:0GiB",
            "sim:8QB",
            "sim:8GiB*0",
            "sim:8GiB*2000",
            "sim:99999999999TiB",
        ];
        for text in wrong {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{text}' names no devices: ")), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn devices_can_be_offered_and_replaced() {
        assert!(parse("offered-in-a-test").is_err());
        offer("offered-in-a-test", || Err(DevicesError::NotMade("not yet".to_owned())));
        let devices = parse("offered-in-a-test").unwrap();
        let refused = devices.open(|device| device).err();
        assert_eq!(refused, Some(DevicesError::NotMade("not yet".to_owned())));
        offer("offered-in-a-test", || {
            let device = |index| -> Arc<dyn Device> {
                Arc::new(SimDevice::new(SimOptions::default().index(index)))
            };
            Ok(vec![device(0), device(1)])
        });
        assert_eq!(devices.open(|device| device).unwrap().len(), 2);
    }

    #[test]
    fn simulated_gpus_are_numbered() {
        let devices = parse("sim:1GiB*3").unwrap().open(|device| device).unwrap();
        let indices: Vec<u32> = devices.iter().map(|device| device.properties().index.0).collect();
        assert_eq!(indices, [0, 1, 2]);
    }
}
