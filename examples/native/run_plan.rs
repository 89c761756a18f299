//! Runs a packed plan on inputs from files: `run_plan PLAN FOLDER [DRIVER]`, as run_plan.c does.
//!
//! ```sh
//! rustc -O examples/native/run_plan.rs -L build -l cuts_run -o run_plan
//! ```

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ffi::{c_char, c_void, CStr, CString};
use std::{env, fs, process, ptr, slice};

const INPUT: i32 = 0;
const OUTPUT: i32 = 1;
const HOST_DEVICE: i32 = 1;
const ALIGNMENT: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct TensorInfo {
    name: *const c_char,
    role: i32,
    dtype: DType,
    ndim: i32,
    shape: *const i64,
    nbytes: u64,
}

#[repr(C)]
struct Options {
    size: usize,
    ordinal: i32,
    library: *const c_char,
    platform: *const c_char,
    context: *mut c_void,
    device: *mut c_void,
}

#[repr(C)]
struct RawPlan {
    _private: [u8; 0],
}

#[repr(C)]
struct RawSession {
    _private: [u8; 0],
}

extern "C" {
    fn cuts_last_error() -> *const c_char;
    fn cuts_options_default(options: *mut Options);
    fn cuts_plan_open(path: *const c_char, options: *const Options, plan: *mut *mut RawPlan) -> i32;
    fn cuts_plan_close(plan: *mut RawPlan);
    fn cuts_plan_tensor(plan: *const RawPlan, role: i32, index: u32, info: *mut TensorInfo) -> i32;
    fn cuts_session_create(plan: *mut RawPlan, session: *mut *mut RawSession) -> i32;
    fn cuts_session_destroy(session: *mut RawSession);
    fn cuts_session_run(
        session: *mut RawSession,
        inputs: *const Tensor,
        input_count: u32,
        outputs: *const Tensor,
        output_count: u32,
        stream: *mut c_void,
    ) -> i32;
}

fn check(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(cuts_last_error()) }.to_string_lossy().into_owned())
}

/// Host memory of a tensor.
struct Memory {
    data: *mut u8,
    layout: Layout,
    nbytes: usize,
}

impl Memory {
    fn new(nbytes: usize) -> Self {
        let layout = Layout::from_size_align(nbytes.max(1), ALIGNMENT).expect("sizes of tensors are small");
        Memory { data: unsafe { alloc_zeroed(layout) }, layout, nbytes }
    }

    fn bytes(&mut self) -> &mut [u8] {
        unsafe { slice::from_raw_parts_mut(self.data, self.nbytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { dealloc(self.data, self.layout) }
    }
}

/// A plan with one session.
struct Plan {
    plan: *mut RawPlan,
    session: *mut RawSession,
}

impl Plan {
    fn open(path: &str, driver: Option<&str>) -> Result<Self, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        let driver = driver.map(CString::new).transpose().map_err(|error| error.to_string())?;
        let mut found = Plan { plan: ptr::null_mut(), session: ptr::null_mut() };
        unsafe {
            let mut options: Options = std::mem::zeroed();
            cuts_options_default(&mut options);
            options.library = driver.as_ref().map_or(ptr::null(), |name| name.as_ptr());
            check(cuts_plan_open(path.as_ptr(), &options, &mut found.plan))?;
            check(cuts_session_create(found.plan, &mut found.session))?;
        }
        Ok(found)
    }

    fn tensors(&self, role: i32) -> Vec<TensorInfo> {
        let mut found = Vec::new();
        loop {
            let mut info: TensorInfo = unsafe { std::mem::zeroed() };
            if unsafe { cuts_plan_tensor(self.plan, role, found.len() as u32, &mut info) } != 0 {
                return found;
            }
            found.push(info);
        }
    }

    fn run(&self, inputs: &[Tensor], outputs: &[Tensor]) -> Result<(), String> {
        let (given, results) = (inputs.len() as u32, outputs.len() as u32);
        let stream = ptr::null_mut();
        check(unsafe { cuts_session_run(self.session, inputs.as_ptr(), given, outputs.as_ptr(), results, stream) })
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        unsafe {
            cuts_session_destroy(self.session);
            cuts_plan_close(self.plan);
        }
    }
}

/// Returns a dense tensor over memory.
fn view(info: &TensorInfo, memory: &Memory) -> Tensor {
    Tensor {
        data: memory.data.cast(),
        device: Device { kind: HOST_DEVICE, ordinal: 0 },
        ndim: info.ndim,
        dtype: info.dtype,
        shape: info.shape,
        strides: ptr::null(),
        byte_offset: 0,
    }
}

fn path_of(folder: &str, info: &TensorInfo) -> String {
    format!("{folder}/{}.bin", unsafe { CStr::from_ptr(info.name) }.to_string_lossy())
}

fn run(path: &str, folder: &str, driver: Option<&str>) -> Result<(), String> {
    let plan = Plan::open(path, driver)?;
    let (given, results) = (plan.tensors(INPUT), plan.tensors(OUTPUT));
    let mut memory: Vec<Memory> = given.iter().chain(&results).map(|info| Memory::new(info.nbytes as usize)).collect();
    for (info, memory) in given.iter().zip(&mut memory) {
        let content = fs::read(path_of(folder, info)).map_err(|error| error.to_string())?;
        memory.bytes().copy_from_slice(&content);
    }
    let tensors: Vec<Tensor> = given.iter().chain(&results).zip(&memory).map(|(info, m)| view(info, m)).collect();
    plan.run(&tensors[..given.len()], &tensors[given.len()..])?;
    for (info, memory) in results.iter().zip(&mut memory[given.len()..]) {
        fs::write(path_of(folder, info), memory.bytes()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn main() {
    let words: Vec<String> = env::args().collect();
    if words.len() < 3 {
        eprintln!("usage: {} PLAN FOLDER [DRIVER]", words[0]);
        process::exit(2);
    }
    if let Err(error) = run(&words[1], &words[2], words.get(3).map(String::as_str)) {
        eprintln!("{error}");
        process::exit(1);
    }
}
