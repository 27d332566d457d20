-- cli_filter.lua, beside slurm.conf, with CliFilterPlugins=cli_filter/lua: lets Slurm count what --vgpu-mem and --vgpu-sm
-- ask for, as shards, and refuses what is more than a job's shards. Without it these options are for jobs that ask for
-- GPUs or shards themselves, and what is too much ends the job when it starts.

local SHARDS = 4 -- of each GPU: Count of gres.conf's shards, divided by the number of GPUs
local GPU_MIB = 8192 -- memory of each GPU, the smallest one where they differ

local MIB = { k = 1 / 1024, m = 1, g = 1024, t = 1024 * 1024 }

-- The part of a GPU that a size such as 1500m, 1.5GiB or 25% is; vgpurun's plugin has refused what is none.
local function part_of_memory(text)
  local number, unit = string.match(string.lower(text), "^%s*(%d*%.?%d+)%s*(%a*%%?)%s*$")
  if number == nil then return nil end
  if unit == "%" then return tonumber(number) / 100 end
  if unit == "" or unit == "b" then return tonumber(number) / (GPU_MIB * 1024 * 1024) end
  local factor = MIB[string.sub(unit, 1, 1)]
  return factor and tonumber(number) * factor / GPU_MIB
end

-- Of each GPU, the parts that a job asks for, by option.
local function asked(options)
  local spank = options["spank"] and options["spank"]["vgpurun"] or {}
  local percent = spank["vgpu-sm"] and tonumber((string.gsub(spank["vgpu-sm"], "%%", "")))
  return {
    ["vgpu-mem"] = spank["vgpu-mem"] and part_of_memory(spank["vgpu-mem"]),
    ["vgpu-sm"] = percent and percent / 100,
  }, spank
end

-- Of one GPU, the shards that a job asks for: all where it asks for GPUs, nil where it asks for neither. One with
-- --gres=none is left alone.
local function shards_of(options)
  for each in string.gmatch(options["gres"] or "", "[^,]+") do
    if string.find(each, "shard") then return math.min(tonumber(string.match(each, ":(%d+)$") or 1), SHARDS) end
    if string.find(each, "gpu") or string.find(each, "none") then return SHARDS end
  end
  for _, name in ipairs({ "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }) do
    if options[name] ~= nil and options[name] ~= "" then return SHARDS end
  end
end

local function refuse(name, text, part, shards)
  local has = name == "vgpu-sm" and string.format("%d %%", 100 * shards / SHARDS)
    or string.format("%d MiB", GPU_MIB * shards / SHARDS)
  if shards == SHARDS then
    slurm.log_error("vgpurun: --%s=%s is more than a GPU has, %s", name, text, has)
  else
    local enough = part <= 1 and string.format("; ask for --gres=shard:%d", math.ceil(part * SHARDS - 1e-9)) or ""
    slurm.log_error("vgpurun: --%s=%s is more than %d of a GPU's %d shards, %s%s", name, text, shards, SHARDS, has, enough)
  end
  return slurm.ERROR
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  -- A step has its job's share.
  if options["type"] == "srun" and os.getenv("SLURM_JOB_ID") ~= nil then return slurm.SUCCESS end
  local parts, texts = asked(options)
  local shards, largest = shards_of(options), 0
  for name, part in pairs(parts) do
    if part > (shards or SHARDS) / SHARDS then return refuse(name, texts[name], part, shards or SHARDS) end
    largest = math.max(largest, part)
  end
  if shards == nil and largest > 0 then
    local others = options["gres"] and options["gres"] ~= "" and options["gres"] .. "," or ""
    options["gres"] = string.format("%sshard:%d", others, math.ceil(largest * SHARDS - 1e-9))
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
