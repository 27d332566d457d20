-- cli_filter.lua, beside slurm.conf, with CliFilterPlugins=cli_filter/lua: lets Slurm count what --vgpu-mem and --vgpu-sm
-- ask for, as shards. Without it these options are for jobs that ask for GPUs or shards themselves.

local SHARDS = 4 -- of each GPU: Count of gres.conf's shards, divided by the number of GPUs
local GPU_MIB = 8192 -- memory of each GPU, the smallest one where they differ

local MIB = { k = 1 / 1024, m = 1, g = 1024, t = 1024 * 1024 }

-- The part of a GPU that a size such as 1500m, 1.5GiB or 25% is; nil where it is none, which vgpurun says better.
local function part_of_memory(text)
  local number, unit = string.match(string.lower(text), "^%s*(%d*%.?%d+)%s*(%a*%%?)%s*$")
  if number == nil then return nil end
  if unit == "%" then return tonumber(number) / 100 end
  if unit == "" or unit == "b" then return tonumber(number) / (GPU_MIB * 1024 * 1024) end
  local factor = MIB[string.sub(unit, 1, 1)]
  return factor and tonumber(number) * factor / GPU_MIB
end

local function asked(options)
  local part = 0
  local spank = options["spank"] and options["spank"]["vgpurun"] or {}
  if spank["vgpu-mem"] then part = math.max(part, part_of_memory(spank["vgpu-mem"]) or 0) end
  if spank["vgpu-sm"] then part = math.max(part, (tonumber((string.gsub(spank["vgpu-sm"], "%%", ""))) or 0) / 100) end
  return part
end

local function asks_for_gpus(options)
  for _, name in ipairs({ "gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }) do
    if options[name] ~= nil and options[name] ~= "" then return true end
  end
  return false
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  -- A step has its job's share.
  if options["type"] == "srun" and os.getenv("SLURM_JOB_ID") ~= nil then return slurm.SUCCESS end
  local part = asked(options)
  if part > 0 and not asks_for_gpus(options) then
    if part > 1 then
      slurm.log_error("vgpurun: --vgpu-mem is more than a GPU has, %d MiB", GPU_MIB)
      return slurm.ERROR
    end
    options["gres"] = string.format("shard:%d", math.ceil(part * SHARDS - 1e-9))
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
